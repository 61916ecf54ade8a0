"""A stream that was deleted and declared anew: its readers notice it, whatever was published since."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import aio_pika
import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import (
    App,
    Delivery,
    OnRecreated,
    Queue,
    StreamRecreated,
    StreamSubscription,
    SystemClock,
    Timer,
    TopologyMismatch,
)
from warren.sdk.consume.streams.stream_mark import has_mark
from warren.sdk.transport.session import Session


class FastClock(SystemClock):
    """A clock that is an hour fast."""

    def now(self) -> float:
        return super().now() + 3600

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        return super().call_at(when - 3600, callback)


def reading(app: App, stream: str | Queue, seen: list[bytes], **options: Any) -> None:
    """Register the reader `one`, which appends the bodies of its messages to `seen`."""
    options = {"offset": "first", "resume": True, **options}

    @app.handle(bytes, stream=stream, reader="one", **options)
    async def take(body: bytes) -> None:
        seen.append(body)


def reader_of(app: App, name: str) -> StreamSubscription:
    reader = app.subscriptions[f"{name}.one"]
    assert isinstance(reader, StreamSubscription)
    return reader


async def publish(app: App, stream: str, first: int, end: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(first, end)]
    for body in bodies:
        await app.publish(body, exchange="", key=stream)
    return bodies


async def recreate(client: AsyncClient, stream: str) -> None:
    await client.channel.queue_delete(stream)
    await client.channel.declare_queue(stream, durable=True, arguments={"x-queue-type": "stream"})


@pytest.mark.parametrize(
    "count", [pytest.param(3, id="below the position"), pytest.param(8, id="beyond the position")]
)
@pytest.mark.parametrize("choice", ["stop", "first"])
async def test_a_reader_notices_that_its_stream_was_declared_anew_while_it_was_stopped(
    make_app: MakeApp, name: str, amqp_client: AsyncClient, choice: OnRecreated, count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    app, writer = make_app(), make_app()
    seen: list[bytes] = []
    reading(app, name, seen)
    async with app:
        await publish(app, name, 0, 5)
        await eventually(lambda: len(seen) == 5, "all messages are handled")
    seen.clear()
    await recreate(amqp_client, name)
    async with writer:
        new = await publish(writer, name, 100, 100 + count)
    again = make_app()
    reading(again, name, seen, on_recreated=choice)
    async with again:
        if choice == "stop":
            reader = reader_of(again, name)
            await eventually(lambda: reader.error is not None, "the reader stops")
            assert isinstance(reader.error, StreamRecreated)
            assert (reader.error.stream, reader.error.offset) == (name, 5)
            assert "on_recreated='first'" in (again.health().reason or "")
            await reader.resume()
            assert isinstance(reader.error, StreamRecreated)
        else:
            await eventually(lambda: len(seen) == count, "all new messages are handled")
    assert seen == ([] if choice == "stop" else new)
    assert f"event=stream_reader.stream_recreated reader={name}.one offset=5" in caplog.text
    if choice == "first":
        async with again:
            new += await publish(again, name, 200, 202)
            await eventually(lambda: len(seen) >= len(new), "the reader resumes in the new stream")
        assert seen == new


async def test_a_reader_notices_that_its_stream_is_declared_anew_while_it_reads(
    make_app: MakeApp, name: str, amqp_client: AsyncClient
) -> None:
    app = make_app()
    seen: list[bytes] = []
    reading(app, name, seen, on_recreated="first")
    async with app:
        old = await publish(app, name, 0, 5)
        await eventually(lambda: len(seen) == 5, "all messages are handled")
        await recreate(amqp_client, name)
        new = await publish(app, name, 100, 103)
        await eventually(lambda: len(seen) >= 8, "the messages of the new stream are handled")
        assert reader_of(app, name).position == 3
    assert seen == old + new


async def test_a_handler_of_the_former_stream_does_not_move_the_position_in_the_new_one(
    make_app: MakeApp, name: str, amqp_client: AsyncClient
) -> None:
    app = make_app()
    seen: list[bytes] = []
    held, go_on = asyncio.Event(), asyncio.Event()

    @app.handle(
        bytes, stream=name, reader="one", offset="first", resume=True, on_recreated="first", concurrency=2,
        ordered_by=lambda body: body,
    )  # fmt: skip
    async def take(body: bytes) -> None:
        if body == b"2":
            held.set()
            await go_on.wait()
        seen.append(body)

    async with app:
        await publish(app, name, 0, 3)
        await held.wait()
        await amqp_client.channel.queue_delete(name)
        reader = reader_of(app, name)
        await eventually(lambda: reader.position == 0, "the reader begins again")
        go_on.set()
        await eventually(lambda: b"2" in seen, "the handler ends")
        new = await publish(app, name, 100, 103)
        await eventually(lambda: len(seen) >= 6, "all messages of the new stream are handled")
    assert seen[-3:] == new


async def test_a_stream_whose_message_at_the_position_is_gone_was_not_declared_anew(
    make_app: MakeApp, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Queue(name, type="stream", max_length_bytes=8192, max_segment_size_bytes=4096)
    app, writer = make_app(), make_app()
    seen: list[tuple[int, bool]] = []

    @app.handle(bytes, stream=stream, reader="one", offset="first", resume=True)
    async def take(body: bytes, delivery: Delivery) -> None:
        seen.append((delivery.offset or 0, body == b"last"))

    async with app:
        await app.publish(b"0", exchange="", key=name)
        await eventually(lambda: len(seen) == 1, "the first message is handled")
    async with writer:
        for _ in range(100):
            await writer.publish(bytes(1000), exchange="", key=name)
        await writer.publish(b"last", exchange="", key=name)
    async with app:
        await eventually(lambda: seen[-1][1], "the reader goes on with what is left")
    assert "event=stream_reader.messages_missed" in caplog.text
    assert "stream_recreated" not in caplog.text


async def test_the_mark_goes_with_the_stream_and_is_made_once(
    make_app: MakeApp, name: str, amqp_client: AsyncClient
) -> None:
    app = make_app()
    reading(app, name, [])
    async with app:
        first = reader_of(app, name).mark
    async with app:
        assert reader_of(app, name).mark == first
    assert first is not None
    await amqp_client.channel.get_exchange(first)
    await amqp_client.channel.queue_delete(name)
    with pytest.raises(Exception, match="NOT_FOUND"):
        await amqp_client.channel.get_exchange(first)


@pytest.mark.parametrize("offset", ["last", "next"])
async def test_a_reader_that_stopped_before_its_first_message_handles_what_came_meanwhile(
    make_app: MakeApp, name: str, offset: Any
) -> None:
    app, writer = make_app(), make_app()
    seen: list[bytes] = []
    reading(app, name, seen, offset=offset)
    async with app:
        pass
    async with writer:
        new = await publish(writer, name, 0, 5)
    async with app:
        await eventually(lambda: len(seen) == 5, "the messages since the first start are handled")
    assert seen == new


async def test_next_is_the_end_of_the_stream_whatever_time_the_client_has(
    make_app: MakeApp, name: str
) -> None:
    app, writer = make_app(clock=FastClock()), make_app()
    seen: list[bytes] = []
    writer.declare(Queue(name, type="stream", max_age=timedelta(days=1)))
    reading(app, Queue(name, type="stream", max_age=timedelta(days=1)), seen, offset="next")
    async with writer:
        await publish(writer, name, 0, 3)
        async with app:
            pass
        new = await publish(writer, name, 3, 6)
        async with app:
            await eventually(lambda: len(seen) >= 3, "the messages since the first start are handled")
    assert seen == new


async def test_a_stream_that_is_declared_anew_as_its_consumer_starts_is_noticed(
    make_app: MakeApp, name: str, amqp_client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, writer = make_app(), make_app()
    seen: list[bytes] = []
    new: list[bytes] = []
    reading(app, name, seen, on_recreated="first")
    async with app:
        await publish(app, name, 0, 5)
        await eventually(lambda: len(seen) == 5, "all messages are handled")
    seen.clear()

    async def check_and_recreate(session: Session, mark: str) -> bool:
        """Declare the stream anew right after the first check of its mark."""
        is_there = await has_mark(session, mark)
        if not new:
            await recreate(amqp_client, name)
            new.extend(await publish(writer, name, 100, 108))
        return is_there

    monkeypatch.setattr("warren.sdk.consume.streams.stream_subscription.has_mark", check_and_recreate)
    async with writer, app:
        await eventually(lambda: len(seen) >= 8, "all messages of the new stream are handled")
    assert seen == new


async def test_a_position_that_an_earlier_version_stored_is_resumed_and_marked(
    make_app: MakeApp, name: str, amqp_client: AsyncClient
) -> None:
    app = make_app()
    seen: list[bytes] = []
    reading(app, name, seen)
    async with app:
        old = await publish(app, name, 0, 5)
        await eventually(lambda: len(seen) == 5, "all messages are handled")
    queue = await amqp_client.channel.get_queue(f"{name}.one.position")
    await queue.purge()
    message = aio_pika.Message(b'{"offset": 3, "since": null}', delivery_mode=2)
    await amqp_client.channel.default_exchange.publish(message, queue.name)
    seen.clear()
    async with app:
        await eventually(lambda: len(seen) >= 2, "the reader resumes")
        assert reader_of(app, name).mark is not None
    assert seen == old[3:]


async def test_a_reader_without_the_right_to_mark_its_stream_says_so_and_reads(
    make_app: MakeApp, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(session: Session, stream: str, reader: str) -> str:
        raise TopologyMismatch("access refused", reply_code=403)

    monkeypatch.setattr("warren.sdk.consume.streams.stream_subscription.mark_stream", refuse)
    app = make_app()
    seen: list[bytes] = []
    reading(app, name, seen)
    async with app:
        await publish(app, name, 0, 2)
        await eventually(lambda: len(seen) == 2, "all messages are handled")
    async with app:
        await publish(app, name, 2, 4)
        await eventually(lambda: len(seen) >= 4, "the reader resumes")
    assert seen == [b"0", b"1", b"2", b"3"]
    assert f"event=stream_reader.mark_refused reader={name}.one" in caplog.text
