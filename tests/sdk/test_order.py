"""Ordering by key: one message of a key at a time, other keys concurrently; and prefetch."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import App, Command, ConfigError, Delivery


async def test_messages_of_one_key_wait_while_other_keys_run(make_app: MakeApp, name: str) -> None:
    class Step(Command, queue=name):
        order: str
        number: int

    app = make_app()
    done: list[tuple[str, int]] = []
    finish = asyncio.Event()
    most: dict[str, int] = defaultdict(int)
    running: dict[str, int] = defaultdict(int)

    @app.handle(Step, concurrency=3, prefetch=50, ordered_by=lambda step: step.order)
    async def step(message: Step) -> None:
        running[message.order] += 1
        most[message.order] = max(most[message.order], running[message.order])
        if message.order == "slow":
            await finish.wait()
        await asyncio.sleep(0)
        running[message.order] -= 1
        done.append((message.order, message.number))

    async with app:
        steps = [Step(order=order, number=n) for n in range(10) for order in ("slow", "a", "b", "c")]
        await app.publish_many(steps)
        await eventually(lambda: len(done) == 30, "the other keys are not held up")
        finish.set()
        await eventually(lambda: len(done) == 40, "the slow one comes to its end")
    assert set(most.values()) == {1}
    for order in ("slow", "a", "b", "c"):
        assert [n for one, n in done if one == order] == list(range(10))


async def test_the_key_may_be_a_header(make_app: MakeApp, name: str) -> None:
    app = make_app()
    done: dict[str, list[bytes]] = defaultdict(list)

    @app.handle(bytes, queue=name, concurrency=4, ordered_by="tenant")
    async def take(body: bytes, delivery: Delivery) -> None:
        for _ in range(5 - int(body)):
            await asyncio.sleep(0)
        done[delivery.headers["tenant"]].append(body)

    async with app:
        for number in range(5):
            for tenant in ("x", "y"):
                await app.publish(b"%d" % number, key=name, headers={"tenant": tenant})
        await eventually(lambda: sum(map(len, done.values())) == 10, "all are handled")
    assert done == {tenant: [b"0", b"1", b"2", b"3", b"4"] for tenant in ("x", "y")}


async def test_messages_without_a_readable_key_are_handled(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Step(Command, queue=name):
        number: int

    app = make_app()
    seen: list[int] = []

    def key(step: Step) -> Any:
        return [step.number] if step.number == 1 else 10 // step.number

    @app.handle(Step, ordered_by=key)
    async def step(message: Step) -> None:
        seen.append(message.number)

    async with app:
        await amqp_client.put(name, b"{", content_type="application/json")
        await app.publish_many([Step(number=0), Step(number=1), Step(number=2)])
        assert (await amqp_client.take(f"{name}.dead")).headers["warren-dead-reason"] == "undecodable"
        await eventually(lambda: sorted(seen) == [0, 1, 2], "the others are handled")


async def test_the_prefetch_is_independent_of_the_concurrency(make_app: MakeApp, name: str) -> None:
    app = make_app()
    finish = asyncio.Event()

    @app.handle(bytes, queue=name, concurrency=2, prefetch=7)
    async def take(body: bytes) -> None:
        await finish.wait()

    async with app:
        await app.publish_many([b""] * 20, key=name)
        statistics = app.subscriptions[name].snapshot
        await eventually(
            lambda: (statistics().running, statistics().waiting) == (2, 5),
            "the concurrency and the prefetch are used",
        )
        assert statistics().delivered == 7
        finish.set()
        await eventually(lambda: statistics().acknowledged == 20, "all are handled")


async def test_a_late_consumer_gets_messages_from_the_backlog(make_app: MakeApp, name: str) -> None:
    """With an unlimited prefetch the first worker would hold all 10,000 messages and the second none."""
    first, second = make_app(), make_app()
    got = asyncio.Event()
    held: list[int] = []

    @first.handle(bytes, queue=name)
    async def wait(body: bytes) -> None:
        await got.wait()

    @second.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        held.append(first.subscriptions[name].statistics.delivered)
        got.set()

    async with first:
        await first.publish_many([b""] * 10_000, key=name)
        async with second:
            began = asyncio.get_running_loop().time()
            await asyncio.wait_for(got.wait(), 60)
            waited = asyncio.get_running_loop().time() - began
            assert held[0] == 20, "the first worker holds its prefetch, and no more"
            await second.subscriptions[name].cancel()
            await first.subscriptions[name].cancel()
    print(f"the second worker had work {waited * 1000:.1f} ms after its start")


def test_numbers_out_of_range_are_refused() -> None:
    app = App("amqp://localhost")
    handle: Any = app.handle
    for options, text in [
        ({"prefetch": 0}, "prefetch must be from 1 to 65535"),
        ({"prefetch": 65_536}, "prefetch must be from 1 to 65535"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
    ]:
        with pytest.raises(ConfigError, match=text):
            handle(bytes, queue="q", **options)

    async def one(body: Any) -> None: ...

    class A(Command, queue="q"):
        pass

    class B(Command, queue="q"):
        pass

    handle(A, prefetch=3)(one)
    with pytest.raises(ConfigError, match="must have the same concurrency, prefetch, ordered_by and breaker"):
        handle(B, prefetch=4)(one)
