"""Event capture in the SDK: all events of a message are in the stream once and in order, or are reported missing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.blocking_client import Connection
from tests.support.capture_reader import CaptureReader, names, of
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from warren.sdk import (
    App,
    Capture,
    CaptureStatistics,
    Command,
    ConfigError,
    DeadLetter,
    Queue,
    Requeue,
    TopologyMismatch,
    Unroutable,
)


@pytest.fixture
def stream(amqp_url: str, name: str) -> Iterator[str]:
    yield f"{name}.events"
    with Connection(amqp_url) as connection:
        connection.channel().delete(f"{name}.events")


@pytest.fixture
def reading(amqp_url: str, stream: str) -> Iterator[list[CaptureReader]]:
    """Close the captures that a test has opened by `read`."""
    opened: list[CaptureReader] = []
    yield opened
    for one in opened:
        one.close()


def statistics(app: App) -> CaptureStatistics:
    found = app.statistics().components["capture"]
    assert isinstance(found, CaptureStatistics)
    return found


async def read(reading: list[CaptureReader], url: str, stream: str) -> CaptureReader:
    """Return all events that the App, now stopped, has captured."""
    opened = CaptureReader(url, stream)
    reading.append(opened)
    return await asyncio.to_thread(opened.stopped)


async def test_every_event_of_a_message_is_captured_once_and_in_order(
    make_app: MakeApp, amqp_url: str, stream: str, reading: list[CaptureReader], name: str
) -> None:
    class Job(Command, queue=name):
        what: str

    app = make_app(name="shop", capture=Capture(stream=stream))
    again: set[str] = set()
    done: asyncio.Queue[str] = asyncio.Queue()

    @app.handle(Job, concurrency=2)
    async def work(job: Job) -> None:
        done.put_nowait(job.what)
        if job.what == "bad":
            raise DeadLetter("no use")
        if job.what == "late" and job.what not in again:
            again.add(job.what)
            raise Requeue

    async with app:
        for what in ("good", "bad", "late"):
            await app.publish(Job(what=what), message_id=f"{name}-{what}")
        with pytest.raises(Unroutable):
            await app.publish(b"12345", key=f"{name}.nowhere", message_id=f"{name}-lost")
        await app.publish(
            b"123", key=f"{name}.nowhere", message_id=f"{name}-thrown", reliability="at_most_once"
        )
        for _ in range(4):
            await asyncio.wait_for(done.get(), 30)

    found = await read(reading, amqp_url, stream)
    events = found.events
    assert found.missing() == 0
    assert {(batch.by, batch.application) for batch in found.batches} == {("sdk", "shop")}
    assert (names(events)[0], names(events)[-1]) == ("started", "stopped")
    good = names(events, message_id=f"{name}-good")
    # The confirm comes on another connection than the delivery.
    assert [event for event in good if event != "confirmed"] == ["published", "delivered", "acked"]
    assert good.count("confirmed") == 1
    assert sorted(names(events, message_id=f"{name}-late")) == sorted(
        ["published", "confirmed", "delivered", "requeued", "delivered", "acked"]
    )
    assert sorted(names(events, message_id=f"{name}-bad")) == sorted(
        ["published", "confirmed", "delivered", "published", "confirmed", "dead_lettered", "acked"]
    )
    assert names(events, message_id=f"{name}-lost") == ["published", "returned", "confirmed"]
    assert names(events, message_id=f"{name}-thrown") == ["published"]

    (published,) = of(events, "published", message_id=f"{name}-good")
    (returned,) = of(events, "returned")
    (dead,) = of(events, "dead_lettered")
    (consuming,) = of(events, "consuming", queue=name)
    (cancelled,) = of(events, "cancelled", queue=name)
    deliveries = of(events, "delivered", message_id=f"{name}-late")
    assert (published["exchange"], published["routing_key"], published["bytes"]) == (
        "",
        name,
        len(b'{"what":"good"}'),
    )
    assert (returned["reason"], returned["routing_key"]) == ("NO_ROUTE", f"{name}.nowhere")
    assert (dead["queue"], dead["reason"]) == (name, "rejected")
    assert (consuming["prefetch"], consuming["no_ack"], consuming["consumer"]) == (
        4,
        False,
        cancelled["consumer"],
    )
    assert [one.get("redelivered", False) for one in deliveries] == [False, True]
    assert {one["consumer"] for one in deliveries} == {consuming["consumer"]}
    assert {one["connection"] for one in deliveries} == {consuming["connection"]} != {published["connection"]}
    assert " -> 127.0.0.1:" in published["connection"]
    times = [
        event["at"] for event in of(events, "published", "confirmed", "acked", message_id=f"{name}-good")
    ]
    assert times == sorted(times)


async def test_events_of_a_stream_consumer_are_marked(
    make_app: MakeApp, amqp_url: str, stream: str, reading: list[CaptureReader], name: str
) -> None:
    class Line(Command, queue=Queue(f"{name}.log", type="stream")):
        what: str

    class Job(Command, queue=name):
        what: str

    app = make_app(capture=Capture(stream=stream))
    done: asyncio.Queue[str] = asyncio.Queue()

    @app.handle(Line)
    async def read_line(line: Line) -> None:
        done.put_nowait(line.what)

    @app.handle(Job)
    async def work(job: Job) -> None:
        done.put_nowait(job.what)

    async with app:
        # RabbitMQ looks up the end of the stream after consume-ok, and before it replies to the next method.
        reader = app.subscriptions[f"{name}.log"]._channel
        assert reader is not None
        await reader.methods.basic_qos(prefetch_count=20)
        for message in (Line(what="line"), Job(what="job")):
            await app.publish(message)
            await asyncio.wait_for(done.get(), 30)

    captured = (await read(reading, amqp_url, stream)).events
    with Connection(amqp_url) as connection:
        connection.channel().delete(f"{name}.log")
    steps = ["consuming", "delivered", "acked", "cancelled"]
    assert [event["event"] for event in captured if event.get("stream")] == steps
    assert names(captured, queue=f"{name}.log", stream=True) == steps
    assert set(names(captured, queue=name, stream=None)) >= set(steps)


async def test_a_transaction_is_captured_at_its_commit(
    make_app: MakeApp,
    amqp_client: AsyncClient,
    amqp_url: str,
    stream: str,
    reading: list[CaptureReader],
    name: str,
) -> None:
    app = make_app(capture=Capture(stream=stream))
    app.declare(Queue(name))
    async with app:
        await amqp_client.put(name, b"old", message_id="old")
        async with app.transaction() as tx:
            await tx.publish(b"new", key=name, message_id="new")
            while (taken := await tx.get(name)) is None:
                pass
            assert taken.message_id == "old"
        with pytest.raises(ZeroDivisionError):
            await rolled_back(app, name)
        async with app.transaction() as tx:
            await tx.publish(b"next", key=name, message_id="next")
        message = await app.get(name, timeout=30)
        assert message is not None
        await message.requeue()
    events = (await read(reading, amqp_url, stream)).events
    assert names(events, message_id="old") == ["delivered", "acked"]
    assert names(events, message_id="new") == ["published", "confirmed", "delivered", "requeued"]
    assert names(events, message_id="never") == ["published"]
    assert names(events, message_id="next") == ["published", "confirmed"]


async def rolled_back(app: App, queue: str) -> None:
    async with app.transaction() as tx:
        await tx.publish(b"never", key=queue, message_id="never")
        raise ZeroDivisionError


async def test_nothing_is_missing_after_lost_connections(
    make_app: MakeApp, proxy: Proxy, amqp_url: str, stream: str, reading: list[CaptureReader], name: str
) -> None:
    app = make_app(proxy.url, capture=Capture(stream=stream, batch=20, within=0.02))
    app.declare(Queue(name, type="classic", dead_letter_exchange=None))
    async with app:
        for round in range(3):
            publishes = [
                await app.submit(b"x", key=name, message_id=f"{round}-{number}") for number in range(100)
            ]
            proxy.cut()
            await asyncio.gather(*publishes)
        assert statistics(app).dropped == 0
        republished = app.statistics().publisher.republished
    found = await read(reading, amqp_url, stream)
    assert found.missing() == 0
    confirmed = [event["message_id"] for event in of(found.events, "confirmed")]
    assert sorted(confirmed) == sorted(f"{round}-{number}" for round in range(3) for number in range(100))
    published = of(found.events, "published")
    first = [event["message_id"] for event in published if not event.get("redelivered")]
    assert sorted(first) == sorted(confirmed)
    assert len(published) - len(first) == republished > 0


async def test_events_that_cannot_be_written_are_dropped_and_counted(
    make_app: MakeApp, amqp_url: str, stream: str, reading: list[CaptureReader], name: str
) -> None:
    capture = Capture(stream=stream, batch=1, buffer=20)
    with Connection(amqp_url) as connection:
        channel = connection.channel()
        channel.declare(stream, durable=True, x_queue_type="stream")
        channel.declare(name)
        app = make_app(declare="never", capture=capture)
        async with app:
            await eventually(lambda: statistics(app).waiting == 0, "its start is written")
            gone = statistics(app).written
            channel.delete(stream)
            for number in range(50):
                await app.publish(b"x", key=name, message_id=str(number))
            assert statistics(app).dropped == 100 - 20
            channel.declare(stream, durable=True, x_queue_type="stream")
            await eventually(lambda: statistics(app).waiting == 0, "the stream is used again")
            await app.publish(b"x", key=name, message_id="last")
            await eventually(lambda: statistics(app).waiting == 0, "all is written")
            dropped = statistics(app).dropped
        found = await read(reading, amqp_url, stream)
        channel.delete(name)
    assert names(found.events, message_id="last") == ["published", "confirmed"]
    assert found.missing() == dropped + gone


@pytest.mark.parametrize("character", ["n", "é", "日"])
async def test_an_application_may_have_a_long_name(
    make_app: MakeApp, amqp_url: str, stream: str, reading: list[CaptureReader], character: str
) -> None:
    """A property holds 255 bytes, whatever the characters."""
    app = make_app(name=character * 256, capture=Capture(stream=stream, within=0.01))
    async with app:
        await eventually(lambda: statistics(app).written > 0, "it writes")
    (batch, *_) = (await read(reading, amqp_url, stream)).batches
    assert batch.application == character * (255 // len(character.encode()))
    assert batch.source.startswith(f"{character * (150 // len(character.encode()))}.")


async def test_a_batch_that_cannot_be_encoded_is_dropped(
    make_app: MakeApp, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(name="n" * 256, capture=Capture(stream=stream, within=0.01))
    monkeypatch.setattr("warren.sdk.capture.recorder.truncate_utf8", lambda name, limit: name)
    async with app:
        await eventually(lambda: statistics(app).dropped > 0, "it is dropped")
        await eventually(lambda: statistics(app).waiting == 0, "nothing waits for it")
        assert statistics(app).written == 0


async def test_a_deleted_stream_is_declared_again(
    make_app: MakeApp, amqp_url: str, stream: str, reading: list[CaptureReader], name: str
) -> None:
    app = make_app(capture=Capture(stream=stream, within=0.01))
    with Connection(amqp_url) as connection:
        channel = connection.channel()
        async with app:
            await eventually(lambda: statistics(app).written > 0, "it writes")
            channel.delete(stream)
            await app.publish(b"x", key=name, message_id="one", reliability="at_most_once")
            await eventually(lambda: statistics(app).waiting == 0, "it is written")
    found = await read(reading, amqp_url, stream)
    assert names(found.events, message_id="one") == ["published"]


SCRIPT = """
import asyncio, sys
from warren.sdk import App, Capture, Queue

async def main(url, stream, queue):
    app = App(url, capture=Capture(stream=stream, batch=10))
    app.declare(Queue(queue, type="classic", dead_letter_exchange=None))
    async with app:
        while True:
            await app.publish(b"x", key=queue)
            print("published", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_killed_process_leaves_no_gap_and_no_last_event(
    amqp_client: AsyncClient, amqp_url: str, stream: str, name: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, amqp_url, stream, name, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        for _ in range(60):
            assert await process.stdout.readline() == b"published\n"
    finally:
        process.kill()
        await process.communicate()
    reading = CaptureReader(amqp_url, stream)
    try:
        await asyncio.to_thread(reading.until, lambda found: len(of(found.events, "published")) >= 10)
    finally:
        reading.close()
    assert names(reading.events)[0] == "started"
    assert "stopped" not in names(reading.events)
    assert reading.missing() == 0
    await amqp_client.channel.queue_delete(name)


async def test_without_capture_there_is_no_connection_for_it(
    make_app: MakeApp, proxy: Proxy, stream: str
) -> None:
    # Those that are open: how many attempts it took does not matter.
    async with make_app(proxy.url):
        await eventually(lambda: proxy.connections == 2, "there are two")
    await eventually(lambda: proxy.connections == 0, "they are closed")
    async with make_app(proxy.url, capture=Capture(stream=stream)):
        await eventually(lambda: proxy.connections == 3, "there is one more")


async def test_a_missing_stream_is_named_if_it_may_not_be_declared(make_app: MakeApp, name: str) -> None:
    app = make_app(declare="never", capture=Capture(stream=f"{name}.none"))
    with pytest.raises(TopologyMismatch, match=rf"cannot capture events to stream '{name}\.none'"):
        await app.start()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"batch": 0}, "capture: batch must be from 1 to 10000, not 0"),
        ({"buffer": 999}, "must hold two batches"),
        ({"within": 0}, "within must be more than 0"),
        ({"stream": ""}, "a queue needs a name"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        Capture(**settings)  # type: ignore[arg-type]
