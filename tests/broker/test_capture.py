"""Event capture in the broker: the events of all clients' messages, and none about the event stream itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from pamqp.commands import Basic, Tx

from tests.support.blocking_client import Channel, Connection
from tests.support.broker_process import BrokerProcess, warren
from tests.support.capture_reader import CaptureReader, Event, names, of
from tests.support.polling import eventually
from tests.support.streams import consume, declare_stream
from warren.broker import Broker, BrokerConfig
from warren.sdk import App, Capture

pytestmark = pytest.mark.processes

STREAM = "warren.events"


@pytest.fixture
def capturing(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", "--capture-events", STREAM) as broker:
        yield broker


@pytest.fixture
def channel(capturing: BrokerProcess) -> Iterator[Channel]:
    connection = Connection(capturing.url)
    yield connection.channel()
    connection.abort()


def all_events(broker: BrokerProcess) -> list[Event]:
    """Return all events until now."""
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("after")
        channel.publish("after", message_id="end")
        reading = CaptureReader(broker.url, STREAM)
        try:
            reading.until(lambda found: bool(of(found.events, "published", message_id="end")))
        finally:
            reading.close()
    assert reading.missing() == 0
    assert {batch.by for batch in reading.batches} == {"broker"}
    return [event for event in reading.events if event.get("queue") != "after"]


def test_life_cycle_events_of_a_clients_messages(capturing: BrokerProcess, channel: Channel) -> None:
    channel.declare("dead")
    channel.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    channel.confirm()
    for identity in ("acked", "nacked", "rejected"):
        channel.publish("q", b"12345", message_id=identity, content_type="text/plain", headers={"a": 1})
    channel.publish("nowhere", mandatory=True, message_id="lost")
    channel.publish("q", b"no id")
    assert channel.settled(5) == [True] * 5
    assert isinstance(channel.deliveries(1)[0].carrier, Basic.Return)
    channel.qos(10)
    tag = channel.consume("q", "worker")
    acked, nacked, rejected, _ = channel.deliveries(4)
    channel.ack(acked.tag)
    channel.nack(nacked.tag)
    (again,) = channel.deliveries(1)
    channel.reject(rejected.tag)
    channel.ack(again.tag, multiple=True)
    channel.cancel(tag)
    held = channel.get("dead")
    assert held is not None
    other = channel.connection.channel()
    channel.publish("q", message_id="held")
    channel.settled_until(6)
    got = other.get("q")
    assert got is not None
    other.close()
    taken = channel.get("q", no_ack=True)
    assert taken is not None
    channel.connection.close()

    events = all_events(capturing)
    assert names(events, message_id="acked") == ["published", "confirmed", "delivered", "acked"]
    assert names(events, message_id="nacked") == [
        "published", "confirmed", "delivered", "requeued", "delivered", "acked",
    ]  # fmt: skip
    assert names(events, message_id="rejected") == [
        "published", "confirmed", "delivered", "rejected", "published", "dead_lettered", "delivered", "requeued",
    ]  # fmt: skip
    assert names(events, message_id="lost") == ["published", "returned", "confirmed"]
    assert names(events, message_id="held") == [
        "published", "confirmed", "delivered", "requeued", "delivered",
    ]  # fmt: skip

    first = of(events, "published", message_id="acked")[0]
    assert (first["exchange"], first["routing_key"], first["queue"], first["bytes"]) == ("", "q", "q", 5)
    client = first["connection"]
    assert client.endswith(f" -> 127.0.0.1:{capturing.port}")
    (consuming,) = of(events, "consuming")
    assert (consuming["queue"], consuming["consumer"], consuming["prefetch"], consuming["no_ack"]) == (
        "q", "worker", 10, False,
    )  # fmt: skip
    assert of(events, "cancelled") == [{**of(events, "cancelled")[0], "queue": "q", "consumer": "worker"}]
    for event in of(events, "delivered", "acked", "rejected", queue="q", consumer="worker"):
        assert event["connection"] == client
    assert [one.get("redelivered", False) for one in of(events, "delivered", message_id="nacked")] == [
        False,
        True,
    ]
    letter = of(events, "published", message_id="rejected")[1]
    assert (letter["queue"], letter["routing_key"]) == ("dead", "dead")
    assert "connection" not in letter
    (dead,) = of(events, "dead_lettered")
    assert (dead["queue"], dead["reason"], dead["routing_key"]) == ("q", "rejected", "q")
    (lost,) = of(events, "published", message_id="lost")
    assert ("queue" in lost, lost["reason"]) == (False, "unroutable")
    assert of(events, "returned")[0]["reason"] == "NO_ROUTE"
    closed = of(events, "requeued", reason="channel closed")
    assert sorted(one["message_id"] for one in closed) == ["held", "rejected"]
    assert of(events, "delivered", message_id="held")[1]["no_ack"] is True
    unnamed = [event for event in of(events, "published", "delivered", "acked") if "message_id" not in event]
    assert [event["event"] for event in unnamed] == ["published", "delivered", "acked"]
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)


def test_expiry_dead_letter_drop_and_purge_events(capturing: BrokerProcess, channel: Channel) -> None:
    channel.declare("dead")
    letters: dict[str, Any] = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
    channel.declare("short", x_max_length=1, **letters)
    channel.declare("plain", x_max_length=1)
    channel.declare("full", x_max_length=1, x_overflow="reject-publish")
    channel.declare("brief", x_message_ttl=0, **letters)
    channel.confirm()
    for queue in ("short", "plain", "full"):
        for number in (1, 2):
            channel.publish(queue, message_id=f"{queue}-{number}")
    channel.publish("brief", message_id="brief")
    channel.publish("brief", message_id="briefer", expiration="0")
    assert channel.settled(8) == [True] * 5 + [False] + [True] * 2
    channel.purge("plain")
    channel.delete("full")
    events = all_events(capturing)
    assert sorted(names(events, message_id="short-1")) == sorted(
        ["published", "confirmed", "published", "dead_lettered"]
    )
    assert of(events, "dead_lettered", message_id="short-1")[0]["reason"] == "maxlen"
    assert of(events, "dropped")[0] == {**of(events, "dropped")[0], "queue": "plain", "reason": "maxlen"}
    assert [one["message_id"] for one in of(events, "dropped")] == ["plain-1"]
    assert names(events, message_id="full-2") == ["published", "nacked"]
    refused = of(events, "published", message_id="full-2")[0]
    assert ("queue" in refused, refused["reason"]) == (False, "refused")
    for identity in ("brief", "briefer"):
        life = names(events, message_id=identity)
        assert sorted(life) == sorted(["published", "expired", "published", "dead_lettered", "confirmed"])
        assert of(events, "dead_lettered", message_id=identity)[0]["reason"] == "expired"
    assert {(one["queue"], one["reason"]) for one in of(events, "purged")} == {
        ("plain", "purged"),
        ("full", "deleted"),
    }


def test_a_fan_out_has_an_event_for_each_queue_and_a_transaction_at_its_commit(
    capturing: BrokerProcess, channel: Channel
) -> None:
    channel.declare_exchange("all")
    for queue in ("one", "two", "three"):
        channel.declare(queue)
        channel.bind(queue, "all")
    channel.publish("", exchange="all", message_id="wide")
    assert channel.ready("three") == 1
    transaction = channel.connection.channel()
    transaction.call(Tx.Select(), Tx.SelectOk)
    transaction.publish("one", message_id="rolled back")
    transaction.call(Tx.Rollback(), Tx.RollbackOk)
    transaction.publish("one", message_id="committed")
    transaction.publish("nowhere", message_id="nobody's")
    transaction.call(Tx.Commit(), Tx.CommitOk)
    events = all_events(capturing)
    wide = of(events, "published", message_id="wide")
    assert sorted(event["queue"] for event in wide) == ["one", "three", "two"]
    assert len({event["connection"] for event in wide}) == 1
    assert names(events, message_id="rolled back") == []
    (committed,) = of(events, "published", message_id="committed")
    assert (committed["queue"], committed["connection"]) == ("one", wide[0]["connection"])
    assert "queue" not in of(events, "published", message_id="nobody's")[0]


def test_event_batches_make_no_events(capturing: BrokerProcess, channel: Channel) -> None:
    async def capture() -> None:
        async with App(capturing.url, capture=Capture(stream="app.events", within=0.01)) as app:
            await app.publish(b"x", key="q", message_id="mine")

    declare_stream(channel, "plain")
    channel.declare("q")
    asyncio.run(capture())
    readers = [CaptureReader(capturing.url, "app.events"), CaptureReader(capturing.url, STREAM)]
    readers[0].stopped()
    readers[1].until(lambda found: len(found.events) > 2)
    for reader in readers:
        reader.close()
    channel.publish("plain", b"\x0dwarren.events", message_id="streamed")
    channel.qos(1)
    channel.consume("plain")
    events = all_events(capturing)
    assert names(events, message_id="mine") == ["published", "confirmed"]
    assert names(events, message_id="streamed") == ["published"]
    assert {event["queue"] for event in of(events, "published", "delivered", "acked")} == {"q", "plain"}
    assert of(events, "consuming", "delivered", queue=STREAM) == []
    assert of(events, "consuming", "delivered", queue="app.events") == []


def test_events_of_streams_are_marked(capturing: BrokerProcess, channel: Channel) -> None:
    declare_stream(channel, "log")
    channel.declare("work")
    channel.confirm()
    for queue in ("log", "work"):
        channel.publish(queue, message_id="one")
    channel.settled(2)
    for queue in ("log", "work"):
        tag = consume(channel, queue, "first" if queue == "log" else None, prefetch=10)
        (message,) = channel.deliveries(1)
        channel.ack(message.tag)
        channel.cancel(tag)
    events = all_events(capturing)
    expected = ["published", "consuming", "delivered", "acked", "cancelled"]
    assert [event["event"] for event in events if event.get("queue") == "log"] == expected
    assert [event["event"] for event in events if event.get("stream")] == expected
    assert {event.get("stream") for event in events if event.get("queue") == "work"} == {None}


def test_only_event_batches_are_not_captured(capturing: BrokerProcess, channel: Channel) -> None:
    """A message with the type's name elsewhere is captured, and so is a message after a batch."""
    declare_stream(channel, "log")
    channel.declare("q")
    channel.publish("q", message_id="warren.events")
    channel.publish("q", message_id="in app_id", app_id="warren.events")
    channel.publish("q", message_id="in a header", headers={"warren.events": "\x0dwarren.events"})
    channel.publish("q", message_id="a batch", message_type="warren.events")
    channel.publish("log", message_id="in the stream", message_type="warren.events")
    channel.publish("log", message_id="behind it")
    channel.qos(10)
    tag = consume(channel, "log", "first")
    for message in channel.deliveries(2):
        channel.ack(message.tag)
    channel.cancel(tag)
    events = all_events(capturing)
    for identity in ("warren.events", "in app_id", "in a header"):
        assert names(events, message_id=identity) == ["published"]
    for identity in ("a batch", "in the stream"):
        assert names(events, message_id=identity) == []
    assert names(events, message_id="behind it") == ["published", "delivered", "acked"]
    assert names(events, queue="log") == ["published", "consuming", "delivered", "acked", "cancelled"]


def test_a_killed_broker_leaves_a_source_without_a_stopped_event(
    capturing: BrokerProcess, channel: Channel
) -> None:
    channel.declare("q", durable=True)
    reading = CaptureReader(capturing.url, STREAM)
    for number in range(1000):
        channel.publish("q", message_id=str(number), delivery_mode=2)
    reading.until(lambda found: len(of(found.events, "published")) >= 500)
    reading.close()
    capturing.kill()
    capturing.start()
    capturing.stop()
    capturing.start()
    reading = CaptureReader(capturing.url, STREAM)
    reading.stopped().close()
    sources = {batch.source for batch in reading.batches}
    assert len(sources) >= 2
    killed = [batch for batch in reading.batches if batch.source == reading.batches[0].source]
    events = [event for batch in killed for event in batch.events]
    assert (events[0]["event"], "stopped" in names(events)) == ("started", False)
    assert [batch.sequence for batch in killed] == [
        1 + sum(b.count for b in killed[:at]) for at in range(len(killed))
    ]


def test_without_capture_there_is_no_event_stream(broker: BrokerProcess) -> None:
    with Connection(broker.url) as connection:
        assert not connection.channel().exists(STREAM)


async def test_a_queue_of_another_type_with_the_streams_name_stops_the_start(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path) as broker:
        broker.virtual_hosts.declarations_of("/").declare_queue(b"orders", True, False, False, b"", None)
    command = warren("broker", "--port", "0", "--data-dir", tmp_path, "--capture-events", "orders")
    done = await asyncio.to_thread(run, command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2, "warren broker: capture_events: queue 'orders' in vhost '/' is no stream",
    )  # fmt: skip


async def test_capture_is_limited_to_its_virtual_host() -> None:
    async with Broker(BrokerConfig(capture_events=("warren.events@b",))) as broker:
        for vhost in ("a", "b"):
            broker.virtual_hosts.add(vhost)
            broker.access.permissions.set("guest", vhost, ".*", ".*", ".*")

        def act() -> list[Event]:
            for vhost in ("a", "b"):
                with Connection(broker.url + vhost) as connection:
                    channel = connection.channel()
                    channel.declare("q")
                    channel.publish("q", message_id=vhost)
                    channel.state("q")
            reading = CaptureReader(broker.url + "b", STREAM)
            reading.until(lambda found: len(of(found.events, "published")) > 0).close()
            return reading.events

        events = await asyncio.to_thread(act)
    assert names(events) == ["started", "published"]
    assert events[1]["message_id"] == "b"


async def test_events_are_dropped_during_an_alarm_and_the_gap_is_visible(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(data_dir=tmp_path, disk_free_limit=0, capture_events=(STREAM,))
    async with Broker(config) as broker:

        def act(identity: str) -> None:
            with Connection(broker.url) as connection:
                channel = connection.channel()
                channel.declare("q", durable=True)
                channel.cancel(channel.consume("q"))
                if identity:
                    channel.publish("q", message_id=identity)

        broker.resources.disk_free_limit = 2**62
        await asyncio.to_thread(act, "")
        # Each in a batch of its own, if the client took its time between them.
        (capture,) = broker._captures.values()
        await eventually(lambda: capture.dropped_events >= 2, "consuming and cancelling are dropped", 60)
        assert "event=capture.events_dropped" in caplog.text
        broker.resources.disk_free_limit = 0
        await asyncio.to_thread(act, "after")

        def read() -> CaptureReader:
            reading = CaptureReader(broker.url, STREAM)
            reading.until(lambda found: bool(of(found.events, "published", message_id="after"))).close()
            return reading

        reading = await asyncio.to_thread(read)
    assert reading.missing() >= 2


@pytest.mark.parametrize("wanted", [("",), ("@b",), ("amq.x",), ("x" * 256,), ("a", "b"), ("a", "b@/")])
def test_invalid_values_of_capture_events_are_refused(wanted: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="capture_events"):
        BrokerConfig(capture_events=wanted)
