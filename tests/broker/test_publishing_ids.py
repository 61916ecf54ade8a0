"""Publishing ids: streams drop messages that a producer publishes again. An extension of Warren's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pamqp.commands import Tx

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.restarts import ENDS, RestartableSession, end
from tests.support.streams import consume, declare_stream, publish
from warren.broker import BrokerConfig


def identity(number: object, producer: object = "p", **headers: object) -> dict[str, Any]:
    """Return the properties of a message with a publishing id."""
    return {"headers": {"x-warren-producer": producer, "x-warren-publishing-id": number, **headers}}


def publish_numbers(channel: Channel, stream: str, *numbers: int, producer: str = "p") -> None:
    """Publish messages, whose bodies are the producer and the id, and wait for the confirms."""
    confirming = channel.connection.channel()
    confirming.confirm()
    for number in numbers:
        confirming.publish(stream, f"{producer}{number}", **identity(number, producer))
    assert confirming.settled(len(numbers)) == [True] * len(numbers)
    confirming.close()


def content(channel: Channel, stream: str) -> list[str]:
    """Return the bodies of all messages of a stream."""
    reader = channel.connection.channel()
    count, _ = reader.state(stream)
    consume(reader, stream, "first", prefetch=60_000)
    found = [message.body.decode() for message in reader.deliveries(count)]
    reader.close()
    return found


def test_a_message_with_an_id_that_was_there_is_dropped_and_confirmed(timed: Channel) -> None:
    declare_stream(timed, "s")
    publish_numbers(timed, "s", 1, 2, 2, 1, 3, 0)
    publish_numbers(timed, "s", 3, 10, 9)
    assert content(timed, "s") == ["p1", "p2", "p3", "p10"]


def test_each_producer_has_ids_of_its_own(timed: Channel) -> None:
    declare_stream(timed, "s")
    publish_numbers(timed, "s", 5)
    publish_numbers(timed, "s", 1, 5, producer="q")
    publish(timed, "s", b"without", headers={"x": 1})
    publish_numbers(timed, "s", 5, 6)
    assert content(timed, "s") == ["p5", "q1", "q5", "without", "p6"]


def test_each_stream_has_ids_of_its_own(timed: Channel) -> None:
    declare_stream(timed, "s")
    timed.declare_exchange("x")
    timed.bind("s", "x")
    publish_numbers(timed, "s", 1)
    declare_stream(timed, "t")
    timed.bind("t", "x")
    timed.declare("q", durable=True)
    timed.bind("q", "x")
    confirming = timed.connection.channel()
    confirming.confirm()
    for number in (1, 1, 2):
        confirming.publish("", f"x{number}", exchange="x", **identity(number))
    assert confirming.settled(3) == [True] * 3
    assert content(timed, "s") == ["p1", "x2"]
    assert content(timed, "t") == ["x1", "x2"]
    # A queue drops nothing.
    assert timed.ready("q") == 3


def test_a_message_is_delivered_with_its_headers(timed: Channel) -> None:
    declare_stream(timed, "s")
    publish(timed, "s", b"", **identity(7, other=1), content_type="text/plain", message_id="m")
    consume(timed, "s", "first")
    (message,) = timed.deliveries(1)
    assert message.headers == {
        "other": 1,
        "x-stream-offset": 0,
        "x-warren-producer": "p",
        "x-warren-publishing-id": 7,
    }
    assert (message.properties.content_type, message.properties.message_id) == ("text/plain", "m")


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        (identity("1"), "'x-warren-publishing-id': .* an integer from 0 to 2\\^63 - 1"),
        (identity(-1), "'x-warren-publishing-id'"),
        (identity(True), "'x-warren-publishing-id'"),
        (identity(1, 5), "'x-warren-producer': .* a text of 1 to 255 bytes"),
        (identity(1, ""), "'x-warren-producer'"),
        (identity(1, "p" * 256), "'x-warren-producer'"),
        ({"headers": {"x-warren-producer": "p"}}, "'x-warren-publishing-id'"),
        ({"headers": {"x-warren-publishing-id": 1}}, "'x-warren-producer'"),
    ],
)
def test_an_invalid_publishing_id_is_refused(
    timed: Channel, other: Channel, headers: dict[str, Any], text: str
) -> None:
    declare_stream(timed, "s")
    timed.publish("s", b"", **headers)
    refused = timed.closed()
    assert refused.code == 406
    with pytest.raises(Closed, match=text):
        raise refused
    assert other.ready("s") == 0


def test_the_headers_of_another_header_are_none(timed: Channel) -> None:
    declare_stream(timed, "s")
    publish(timed, "s", b"0", headers={"copy": identity(1)["headers"]})
    publish(timed, "s", b"1", headers={"copy": identity(1)["headers"]})
    assert content(timed, "s") == ["0", "1"]


def test_a_transaction_drops_duplicates(timed: Channel) -> None:
    declare_stream(timed, "s")
    publish_numbers(timed, "s", 1)
    timed.call(Tx.Select(), Tx.SelectOk)
    for number in (1, 2, 2, 3):
        timed.publish("s", f"p{number}", **identity(number))
    timed.call(Tx.Commit(), Tx.CommitOk)
    assert content(timed, "s") == ["p1", "p2", "p3"]


def test_dead_letters_are_no_duplicates(timed: Channel) -> None:
    """Dead letters may arrive in any order, behind messages with higher ids."""
    declare_stream(timed, "s")
    timed.declare("q", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="s")
    publish_numbers(timed, "q", 1, 2, 3)
    publish_numbers(timed, "s", 2)
    messages = [timed.get("q") for _ in range(3)]
    for message in reversed(messages):
        assert message is not None
        timed.reject(message.tag)
    timed.state("q")
    publish_numbers(timed, "s", 2, 3)
    assert content(timed, "s") == ["p2", "p3", "p2", "p1", "p3"]


@pytest.mark.parametrize("how", ENDS)
def test_ids_survive_a_stop_and_a_crash(session: RestartableSession, how: str) -> None:
    declare_stream(session.channel, "s")
    publish_numbers(session.channel, "s", 1, 2, 3)
    publish_numbers(session.channel, "s", 100, producer="q")
    end(session, how)
    publish_numbers(session.channel, "s", 2, 3, 4)
    publish_numbers(session.channel, "s", 99, 100, 101, producer="q")
    end(session, how)
    publish_numbers(session.channel, "s", 4, 5)
    assert content(session.channel, "s") == ["p1", "p2", "p3", "q100", "p4", "q101", "p5"]


@pytest.mark.parametrize("how", ENDS)
def test_ids_of_earlier_segments_survive(session: RestartableSession, how: str) -> None:
    """Retention has removed the messages with the first producer's ids."""
    declare_stream(session.channel, "s", x_stream_max_segment_size_bytes=4096, x_max_length_bytes=8192)
    publish_numbers(session.channel, "s", 1, 2)
    for _ in range(20):
        publish(session.channel, "s", b"x" * 1500)
    publish_numbers(session.channel, "s", 1, producer="q")
    assert session.channel.state("s")[0] < 23
    end(session, how)
    before = session.channel.state("s")[0]
    publish_numbers(session.channel, "s", 1, 2)
    publish_numbers(session.channel, "s", 1, producer="q")
    assert session.channel.state("s")[0] == before
    publish_numbers(session.channel, "s", 3)
    assert session.channel.state("s")[0] == before + 1


@pytest.mark.parametrize("how", ENDS)
def test_dead_letters_do_not_change_the_ids_that_survive(session: RestartableSession, how: str) -> None:
    channel = session.channel
    declare_stream(channel, "s")
    channel.declare("q", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="s")
    session.publish("q", b"dead", **identity(50))
    message = channel.get("q")
    assert message is not None
    channel.reject(message.tag)
    session.sync()
    end(session, how)
    publish_numbers(session.channel, "s", 1)
    assert content(session.channel, "s") == ["dead", "p1"]


def test_the_producers_that_published_last_are_remembered(
    session: RestartableSession, caplog: pytest.LogCaptureFixture
) -> None:
    declare_stream(session.channel, "s")
    publish_numbers(session.channel, "s", 1, producer="first-")
    publish_numbers(session.channel, "s", 1, producer="second-")
    publish_numbers(session.channel, "s", 2, producer="first-")
    confirming = session.connection.channel()
    confirming.confirm()
    for number in range(999):
        confirming.publish("s", b"", **identity(1, f"another {number}"))
    confirming.settled(999)
    forgotten = [text for text in caplog.messages if text.startswith("event=stream.producer_forgotten")]
    assert forgotten == ["event=stream.producer_forgotten stream='s' producer='second-' limit=1000"]
    for _ in range(2):
        before = session.channel.state("s")[0]
        publish_numbers(session.channel, "s", 2, producer="first-")
        assert session.channel.state("s")[0] == before
        session.crash()
    before = session.channel.state("s")[0]
    publish_numbers(session.channel, "s", 1, producer="second-")
    assert session.channel.state("s")[0] == before + 1


def test_strict_refuses_publishing_ids() -> None:
    with (
        InProcessBroker(config=BrokerConfig(strict=True)) as running,
        Connection(running.url) as connection,
    ):
        channel = connection.channel()
        declare_stream(channel, "s")
        channel.publish("s", b"", **identity(1))
        refused = channel.closed()
        assert refused.code == 406
        assert "an extension of Warren's" in refused.text


def test_a_folder_with_ids_is_read_without_their_use(tmp_path: Path) -> None:
    """Messages with ids are read like any other."""
    with InProcessBroker(tmp_path / "data") as running:
        with Connection(running.url) as connection:
            channel = connection.channel()
            declare_stream(channel, "s", x_stream_max_segment_size_bytes=4096)
            for number in range(30):
                publish(channel, "s", b"%d" % number * 200, **identity(number))
        running.restart()
        with Connection(running.url) as connection:
            assert len(content(connection.channel(), "s")) == 30
