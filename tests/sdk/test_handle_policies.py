"""Handler policies that patterns implement: `Once`, retry policy, delay backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import Any

from tenacity import AsyncRetrying, stop_after_attempt

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from warren.sdk import (
    App,
    Clock,
    Declarable,
    Delivery,
    Queue,
    Request,
)


class Ledger:
    """A minimal `Once` that stores results by message id in memory."""

    def __init__(self) -> None:
        self.results: dict[str, bytes] = {}
        self.stopped = 0

    def register(self, app: App) -> None:
        pass

    async def run(self, message: Any, delivery: Delivery, handler: Callable[[], Awaitable[bytes]]) -> bytes:
        key = delivery.message_id or ""
        if key not in self.results:
            self.results[key] = await handler()
        return self.results[key]

    async def on_stop(self) -> None:
        self.stopped += 1


async def test_once_runs_around_the_handler_and_keeps_its_result(make_app: MakeApp, name: str) -> None:
    class Charge(Request[str], queue=name):
        order_id: str

    app, ledger = make_app(), Ledger()
    charged: list[str] = []

    @app.handle(Charge, once=ledger)
    async def charge(request: Charge) -> str:
        charged.append(request.order_id)
        if len(charged) == 1:
            raise ConnectionError
        return f"receipt {len(charged)}"

    async with app:
        assert await app.call(Charge(order_id="42"), message_id="c1") == "receipt 2"
        assert await app.call(Charge(order_id="42"), message_id="c1") == "receipt 2"
    assert charged == ["42", "42"]
    assert list(ledger.results.values()) == [b'"receipt 2"']
    assert ledger.stopped == 1


class Later:
    """A retry policy with one attempt and a delay, and its backend. Both record their calls."""

    def __init__(self, app: Callable[[], App]) -> None:
        self.asked: list[tuple[str, timedelta]] = []
        self._app = app

    delays = (timedelta(seconds=5),)

    def attempts(self, clock: Clock) -> AsyncRetrying:
        return AsyncRetrying(stop=stop_after_attempt(1), reraise=True)

    def delay(self, error: Exception, delivery: Delivery) -> timedelta | None:
        return timedelta(seconds=5) if delivery.attempt < 3 else None

    def reach(self, queue: str, delays: Collection[timedelta]) -> list[Declarable]:
        return [Queue(f"{queue}.wait", dead_letter_exchange=None) for _ in delays]

    async def redeliver(self, delivery: Delivery, queue: str, after: timedelta) -> None:
        self.asked.append((queue, after))
        await self._app().publish(delivery.body, key=queue, headers={"warren-attempt": delivery.attempt + 1})


async def test_a_policy_delays_before_the_message_is_dead_lettered(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    apps: list[App] = []
    later = Later(lambda: apps[0])
    app = make_app(delay=later)
    apps.append(app)

    @app.handle(bytes, queue=name, retry=later)
    async def fail(body: bytes) -> None:
        raise ConnectionError

    async with app:
        await app.publish(b"1", key=name)
        dead = await amqp_client.take(f"{name}.dead")
    assert later.asked == [(name, timedelta(seconds=5))] * 2
    assert dead.headers["warren-attempt"] == 3
    assert app.state.value == "closed"
