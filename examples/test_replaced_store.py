"""Test an App that was built with Redis, without a Redis. Run it: pytest examples/test_replaced_store.py"""

from collections.abc import Iterator

import pytest

from warren.patterns import MemoryStore, Once, RedisStore, override_store
from warren.sdk import App, Command
from warren.testing import Warren


class Charge(Command, queue="charges"):
    order_id: str


redis = RedisStore("redis://redis.internal:6379/0")
app = App("amqp://broker.internal/")


@app.handle(Charge, once=Once(redis, key=lambda charge: charge.order_id))
async def charge(command: Charge) -> None: ...


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    with override_store(redis, MemoryStore()):
        yield


async def test_an_order_is_charged_once(warren: Warren) -> None:
    async with warren.running(app):
        await warren.publish(Charge(order_id="42"))
        await warren.publish(Charge(order_id="42"))
        assert warren.handled(Charge) == [Charge(order_id="42")]
