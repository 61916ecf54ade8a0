"""Bulk publishing: window, batches by count and time, order, repeated attempts."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import (
    App,
    BatchError,
    Command,
    ConfigError,
    Nacked,
    PublishError,
    PublishReport,
    Queue,
    Unroutable,
)
from warren.sdk.publish.outgoing import Outgoing


def full(name: str, length: int) -> Queue:
    """Declare a queue that refuses further messages when it is full."""
    return Queue(
        name, type="classic", dead_letter_exchange=None, max_length=length, overflow="reject-publish"
    )


async def test_a_message_is_submitted_and_its_confirm_awaited_later(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(full(name, 2))
    async with app:
        confirms = [await app.submit(str(n), key=name, message_id=f"m{n}") for n in range(2)]
        await asyncio.gather(*confirms)
        with pytest.raises(Nacked):
            await (await app.submit("2", key=name))
        with pytest.raises(Unroutable):
            await (await app.submit("2", key=f"{name}.none"))
    assert [(await amqp_client.take(name)).message_id for _ in range(2)] == ["m0", "m1"]


async def test_batches_close_by_count(make_app: MakeApp, amqp_client: AsyncClient, name: str) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        reports = [
            report
            async for report in app.publish_batches(
                (str(n) for n in range(25)), count=10, within=None, key=name
            )
        ]
        assert reports == [PublishReport(10, ()), PublishReport(10, ()), PublishReport(5, ())]
        assert [r async for r in app.publish_batches([], key=name)] == []
    assert [(await amqp_client.take(name)).body for _ in range(25)] == [str(n).encode() for n in range(25)]


async def test_batches_close_by_time_while_the_source_is_idle(make_app: MakeApp, name: str) -> None:
    app = make_app()
    app.declare(Queue(name))
    go_on = asyncio.Event()
    ended = False

    async def source() -> AsyncIterator[str]:
        nonlocal ended
        try:
            yield "1"
            yield "2"
            await go_on.wait()
            yield "3"
            await asyncio.Event().wait()
        finally:
            ended = True

    async with app:
        totals = []
        batches = app.publish_batches(source(), count=3, within=3, key=name)
        async for report in batches:
            totals.append(report.total)
            go_on.set()
            if len(totals) == 2:
                break
        await batches.aclose()
        assert (totals, ended) == ([2, 1], True)


@pytest.mark.parametrize(("count", "within"), [(None, None), (0, 1.0)])
async def test_a_batch_without_count_and_within_is_refused(
    make_app: MakeApp, name: str, count: int | None, within: float | None
) -> None:
    async with make_app() as app:
        with pytest.raises(ConfigError, match=r"count(=| must be at least 1)"):
            async for _ in app.publish_batches([b"1"], count=count, within=within, key=name):
                pass


async def test_only_failures_are_published_again(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(full(name, 3))
    async with app:
        report = await app.publish_many([str(n) for n in range(5)], key=name, on_error="report")
        assert [failure.index for failure in report.failures] == [3, 4]
        ids = [failure.outgoing.message_id for failure in report.failures if failure.outgoing]
        taken = [await amqp_client.take(name) for _ in range(3)]
        assert [message.headers.get("warren-republished") for message in taken] == [None] * 3
        again = await app.publish_again(report)
        assert (again.total, again.failures) == (2, ())
    messages = [await amqp_client.take(name) for _ in range(2)]
    assert [(m.body, m.message_id, m.headers["warren-republished"]) for m in messages] == [
        (b"3", ids[0], True),
        (b"4", ids[1], True),
    ]


async def test_a_message_that_cannot_be_encoded_stays_a_failure(make_app: MakeApp, name: str) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        report = await app.publish_many([b"1", object(), b"3"], key=name, on_error="report")
        assert [(f.index, type(f.error)) for f in report.failures] == [(1, ConfigError)]
        with pytest.raises(BatchError) as caught:
            await app.publish_again(report)
    assert [failure.index for failure in caught.value.report.failures] == [1]


async def test_attempts_are_repeated_until_the_queue_has_room(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(full(name, 2))
    async with app:
        publishing = asyncio.create_task(
            app.publish_many([str(n) for n in range(4)], key=name, attempts=50, on_error="report")
        )
        bodies = [(await amqp_client.take(name)).body for _ in range(4)]
        assert (await publishing).failures == ()
        with pytest.raises(BatchError, match="1 of 1"):
            await app.publish_many([b"never"], key=f"{name}.none", attempts=50)
        with pytest.raises(ConfigError, match="attempts"):
            await app.publish_many([b"1"], key=name, attempts=0)
    assert sorted(bodies) == [b"0", b"1", b"2", b"3"]


async def test_ordered_publishes_do_not_overtake_a_refused_one(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(window=1)
    app.declare(full(name, 3))
    async with app:
        publishing = asyncio.create_task(
            app.publish_many([str(n) for n in range(20)], key=name, ordered=True, attempts=500)
        )
        bodies = [(await amqp_client.take(name)).body for _ in range(20)]
        await publishing
    assert bodies == [str(n).encode() for n in range(20)]


async def test_an_ordered_bulk_publish_stops_at_the_first_that_stays_refused(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(window=4)
    app.declare(full(name, 3))
    async with app:
        report = await app.publish_many(
            [str(n) for n in range(20)], key=name, ordered=True, on_error="report"
        )
        errors = {failure.index: failure.error for failure in report.failures}
        sent = [index for index in range(20) if index not in errors or errors[index].outcome != "not_sent"]
        assert sent == list(range(len(sent)))
        assert 4 <= len(sent) <= 12, "no window was begun after the first nack"
        assert isinstance(errors[3], Nacked)
        assert "not sent, because an earlier" in str(errors[19])
        assert all(isinstance(error, PublishError) and error.retryable for error in errors.values())
        await amqp_client.holds(name, 3)
        # Taken up again where it ended, the order is whole.
        for _ in range(3):
            await amqp_client.take(name)
        rest = await app.publish_again(report, on_error="report")
        assert [failure.index for failure in rest.failures] == list(range(rest.failures[0].index, 20))
        assert rest.failures[0].index in (5, 6)


async def test_ordered_publishes_keep_their_order_across_lost_connections(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(proxy.url, window=20)
    app.declare(Queue(name))
    seen: list[int] = []
    async with app:
        publishing = asyncio.create_task(
            app.publish_many([str(n) for n in range(400)], key=name, ordered=True)
        )
        for _ in range(3):
            before = app.statistics().publisher.confirmed
            await eventually(
                lambda before=before: app.statistics().publisher.confirmed > before or publishing.done(),  # type: ignore[misc]
                "it goes on",
            )
            proxy.cut()
        await publishing
        seen += map(int, await amqp_client.drain(name))
    first = list(dict.fromkeys(seen))
    assert first == list(range(400)), "the first copies are in order; a copy of a lost confirm may come again"


async def test_repeated_attempts_skip_the_middlewares(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app: App = make_app()
    app.declare(full(name, 1))
    passed = 0

    async def seal(outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]]) -> None:
        nonlocal passed
        passed += 1
        outgoing.set_body(b"sealed " + outgoing.body)
        await call_next(outgoing)

    app.middleware(publish=seal)
    async with app:
        report = await app.publish_many([b"1", b"2"], key=name, on_error="report")
        await amqp_client.take(name)
        await app.publish_again(report)
    assert ((await amqp_client.take(name)).body, passed) == (b"sealed 2", 2)


async def test_a_long_source_is_not_kept_in_memory(make_app: MakeApp, name: str) -> None:
    class Count(Command, queue=Queue(name, type="classic", dead_letter_exchange=None)):
        number: int

    alive: weakref.WeakSet[Count] = weakref.WeakSet()
    most = 0

    def source() -> Iterator[Count]:
        nonlocal most
        for number in range(12_000):
            message = Count(number=number)
            alive.add(message)
            most = max(most, len(alive))
            yield message

    async with make_app(window=100) as app:
        report = await app.publish_many(source())
    assert (report.total, report.failures) == (12_000, ())
    assert most < 6_000
