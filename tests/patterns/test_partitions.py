"""Partitions: each key in its order, whatever process handles it, with both ways to divide the keys."""

from __future__ import annotations

import asyncio

import pytest

from tests.patterns.conftest import NewApp
from tests.patterns.partitioned_orders import OrderHandler
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.patterns import Partitions
from warren.sdk import App, ConfigError, Event


def by_key(*handlers: OrderHandler) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for handler in handlers:
        for key, number in handler.done:
            found.setdefault(key, []).append(number)
    return found


async def test_each_key_keeps_its_order_and_keys_are_handled_concurrently(new_app: NewApp, name: str) -> None:
    handler = OrderHandler(new_app(), name)
    async with handler.app:
        await handler.publish(15, keys=12)
        await eventually(lambda: len(handler.done) == 180, "all are done")
    assert all(numbers == list(range(15)) for numbers in by_key(handler).values())
    assert handler.most_at_once_per_key == 1
    assert 1 < handler.most_at_once <= 4


async def test_another_process_takes_over_when_one_ends(new_app: NewApp, name: str) -> None:
    first, second = OrderHandler(new_app(), name), OrderHandler(new_app(), name)
    async with second.app:
        async with first.app:
            await second.publish(5, keys=8)
            await eventually(lambda: len(first.done) + len(second.done) == 40, "all are done")
        await second.publish(5, keys=8)
        await eventually(lambda: len(first.done) + len(second.done) == 80, "all are done")
    numbers = by_key(first, second)
    assert all(sorted(found) == sorted(2 * list(range(5))) for found in numbers.values())


async def test_a_handler_runs_to_its_end_when_its_connection_is_lost(
    new_app: NewApp, amqp_url: str, name: str
) -> None:
    """Two handlers run for one message at a time; each of them keeps the order."""
    returned = asyncio.Event()
    async with Proxy(amqp_url) as proxy:
        first, second = (
            OrderHandler(new_app(proxy.url), name, count=1),
            OrderHandler(new_app(), name, count=1),
        )

        async def hold(number: int) -> None:
            if number == 1:
                await returned.wait()

        first.before = hold  # type: ignore[method-assign]
        async with first.app, second.app:
            await second.publish(4, keys=1)
            await eventually(lambda: first.running["k0"] == 1 and len(first.done) == 1, "it handles number 1")
            proxy.cut()
            await eventually(lambda: ("k0", 3) in second.done, "the other one goes on")
            assert first.running["k0"] == 1
            returned.set()
            await eventually(lambda: len(first.done) == 2, "it ends as well")
    assert first.done == [("k0", 0), ("k0", 1)]
    # The acknowledgement of number 0 may have been lost with the connection.
    assert second.done[-3:] == [("k0", 1), ("k0", 2), ("k0", 3)]
    assert second.done[:-3] in ([], [("k0", 0)])


@pytest.mark.processes
async def test_the_broker_divides_the_keys_by_consistent_hash(
    request: pytest.FixtureRequest, name: str
) -> None:
    if request.config.getoption("--amqp-url") == "rabbitmq":
        pytest.skip("needs the plugin rabbitmq_consistent_hash_exchange")
    handler = OrderHandler(App(request.getfixturevalue("amqp_url")), name, by="broker")
    async with handler.app:
        await handler.publish(10, keys=12)
        await eventually(lambda: len(handler.done) == 120, "all are done")
    assert all(numbers == list(range(10)) for numbers in by_key(handler).values())
    assert handler.most_at_once_per_key == 1


async def test_messages_that_are_published_before_the_first_handler_wait_in_their_queues(
    new_app: NewApp, name: str
) -> None:
    publisher = OrderHandler(new_app(), name, handles=False)
    async with publisher.app:
        await publisher.publish(3, keys=2)
    handler = OrderHandler(new_app(), name)
    async with handler.app:
        await eventually(lambda: len(handler.done) == 6, "it was kept")
    assert by_key(handler) == {"k0": [0, 1, 2], "k1": [0, 1, 2]}


def test_the_partition_of_a_key_never_changes() -> None:
    partitions = Partitions("p", 8, key=str)
    assert [partitions.partition(key) for key in ("", "a", "order-42", "ö")] == [4, 7, 3, 2]
    shares = [partitions.partition(f"order-{number}") for number in range(8000)]
    assert all(800 < shares.count(number) < 1200 for number in range(8))


async def test_invalid_arguments_raise_config_errors(new_app: NewApp, name: str) -> None:
    for wrong in (0, 1025):
        with pytest.raises(ConfigError, match="from 1 to 1024"):
            Partitions("p", wrong, key=str)

    class Other(Event, exchange=f"{name}.other", key="x"):
        pass

    partitions = Partitions(name, 1, key=str)
    with pytest.raises(ConfigError, match="belongs to no App"):
        await partitions.publish(Other())
    new_app().include(partitions)
    with pytest.raises(ConfigError, match="Other does not use the exchange"):
        await partitions.publish(Other())
