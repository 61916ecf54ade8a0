"""Filter expressions of stream consumers: the argument x-warren-filter, an extension of Warren's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp.commands import Basic, Tx

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.bulk_work import Bulk
from tests.support.in_process_broker import InProcessBroker
from tests.support.restarts import RestartableSession
from tests.support.streams import (
    consume,
    declare_stream,
    offset_of,
    publish,
    publish_at_once,
    receive_offsets,
)
from warren.broker import BrokerConfig

MESSAGES: tuple[dict[str, Any], ...] = (
    {"headers": {"region": "eu", "amount": 5, "paid": True}, "message_type": "order"},
    {"headers": {"region": "us", "amount": -7, "paid": False}, "priority": 7},
    {"headers": {"region": "eu", "amount": 12.5, "nothing": None}, "message_type": "refund"},
    {"headers": {"amount": "5", "x-kind": "a b"}, "correlation_id": "c-1"},
    {},
    {"headers": {"region": {"region": "eu"}, "amount": [5], "name": "100% 'sure'"}},
    {"headers": {"region": "asia", "amount": 2**40, "AND": "and"}, "message_id": "m_1"},
)
"""Properties of the messages 0 to 6."""

EXPRESSIONS: tuple[tuple[str, list[int]], ...] = (
    ("region = 'eu'", [0, 2]),
    ('region = "eu"', [0, 2]),
    ("'eu' = region", [0, 2]),
    ("a.region = 'eu'", [0, 2]),
    ("application_properties.region = 'eu'", [0, 2]),
    ("region <> 'eu'", [1, 6]),
    ("region != 'eu'", [1, 6]),
    ("region > 'eu'", [1]),
    ("region <= 'eu'", [0, 2, 6]),
    ("amount > 0", [0, 2, 6]),
    ("amount = 5", [0]),
    ("amount = 5.0", [0]),
    ("amount = '5'", [3]),
    ("amount >= 1.25e1", [2, 6]),
    ("amount < .5", [1]),
    ("amount = -7", [1]),
    ("amount = +5", [0]),
    ("amount = 1099511627776", [6]),
    ("paid", [0]),
    ("paid = TRUE", [0]),
    ("paid = FALSE", [1]),
    ("NOT paid", [1]),
    ("paid > FALSE", []),
    ("region", []),
    ("TRUE", [0, 1, 2, 3, 4, 5, 6]),
    ("NULL", []),
    ("NOT NULL", []),
    ("NULL IS NULL", [0, 1, 2, 3, 4, 5, 6]),
    ("region IS NULL", [3, 4]),
    ("region IS NOT NULL", [0, 1, 2, 5, 6]),
    ("nothing IS NULL AND region = 'eu'", [0, 2]),
    ("region = 'eu' AND amount > 10", [2]),
    ("region = 'us' OR amount > 10 AND region = 'eu'", [1, 2]),
    ("(region = 'us' OR amount > 10) AND region = 'eu'", [2]),
    ("NOT (region = 'eu' OR region = 'us')", [6]),
    ("NOT (region = 'eu' AND amount = 5)", [1, 2, 6]),
    ("region IN ('us', 'asia')", [1, 6]),
    ("region NOT IN ('us', 'asia')", [0, 2]),
    ("amount IN (5, 12.5, 'x')", [0, 2]),
    ("region LIKE 'e%'", [0, 2]),
    ("region LIKE '%s%'", [1, 6]),
    ("region LIKE '_s%a'", [6]),
    ("region LIKE '__'", [0, 1, 2]),
    ("region LIKE '%a%a%'", [6]),
    ("region LIKE 'eu%eu'", []),
    ("region NOT LIKE '%s%'", [0, 2]),
    ("amount LIKE '5'", [3]),
    (r"name LIKE '100\% ''sure''' ESCAPE '\'", [5]),
    ("name LIKE '100!%%' ESCAPE '!'", [5]),
    ("p.message_id LIKE 'm!_%' ESCAPE '!'", [6]),
    ("[x-kind] = 'a b'", [3]),
    ("[AND] = 'and'", [6]),
    ("[x-stream-offset] % 3 = 1", [1, 4]),
    ("amount + 1 = 6", [0]),
    ("amount - 1 = 4", [0]),
    ("amount * 2 = 25", [2]),
    ("amount / 2 = 2", [0]),
    ("amount / 2 = -3", [1]),
    ("amount % 4 = -3", [1]),
    ("amount / 0 = 0 OR paid", [0]),
    ("amount / 2.5 = 5", [2]),
    ("- amount = 7", [1]),
    ("p.type = 'order'", [0]),
    ("properties.type IN ('order', 'refund')", [0, 2]),
    ("p.type IS NULL AND region = 'us'", [1]),
    ("p.priority > 5", [1]),
    ("h.priority = 7", [1]),
    ("p.correlation_id = 'c-1'", [3]),
    ("  region='eu'AND(amount>10)\n", [2]),
)


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessBroker]:
    """Run a broker with a stream `messages`: MESSAGES, and one with the header `end` behind them."""
    with InProcessBroker() as running:
        with Connection(running.url) as connection:
            channel = connection.channel()
            declare_stream(channel, "messages")
            for properties in (*MESSAGES, {"headers": {"end": 1}}):
                publish(channel, "messages", b"", **properties)
        yield running


@pytest.fixture
def channel(running: InProcessBroker) -> Iterator[Channel]:
    """Return a channel to that broker."""
    connection = Connection(running.url)
    yield connection.channel()
    connection.abort()


@pytest.mark.parametrize(("expression", "offsets"), EXPRESSIONS, ids=[text for text, _ in EXPRESSIONS])
def test_an_expression_selects_messages(channel: Channel, expression: str, offsets: list[int]) -> None:
    consume(channel, "messages", "first", x_warren_filter=expression)
    assert receive_offsets(channel, len(offsets)) == offsets
    # Nothing else is accepted before the last message.
    reader = channel.connection.channel()
    consume(reader, "messages", "first", x_warren_filter=f"({expression}) OR [end] = 1")
    assert receive_offsets(reader, len(offsets) + 1) == [*offsets, len(MESSAGES)]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("region =", "it ends early: a value is expected"),
        ("region 'eu'", "unexpected \"'eu'\" at character 8"),
        ("region = 'eu", "a text without its end at character 10"),
        ("region == 'eu'", "unexpected '=' at character 9: a value is expected"),
        ("region = #", "unexpected '#' at character 10"),
        ("(region = 'eu'", "it ends early: ) is expected"),
        ("region = 'eu')", "unexpected ')' at character 14"),
        ("region NOT 'eu'", "unexpected \"'eu'\" at character 12: LIKE or IN is expected"),
        ("region LIKE 5", "unexpected '5' at character 13: a text is expected"),
        ("region LIKE 'a' ESCAPE 'ab'", "ESCAPE has to be one character, and is 'ab'"),
        (
            "region LIKE 'a!' ESCAPE '!'",
            "'!' in the pattern at character 13 has to be followed by %, _ or itself",
        ),
        ("region IN ()", "unexpected ')' at character 12: a value is expected"),
        ("region IS 'eu'", "unexpected \"'eu'\" at character 11: NULL is expected"),
        ("UPPER(region) = 'EU'", "unknown function 'UPPER' at character 1"),
        ("x.region = 'eu'", "unknown prefix 'x' at character 1"),
        ("p.region = 'eu'", "unknown property 'region' at character 3"),
        ("region.a = 'eu'", "unknown prefix 'region' at character 1"),
        ("amount > 12345678901234567890", "the number at character 10 has more than 19 digits"),
        ("a = " + "1" * 4093, "it has 4097 characters, and 4096 are allowed"),
        ("TRUE" + " AND TRUE" * 100, "it has more than 200 words and signs"),
        ("(" * 33 + "TRUE" + ")" * 33, "it is nested deeper than 32 at character 34"),
        ("NOT " * 33 + "TRUE", "it is nested deeper than 32 at character 133"),
        ("amount = " + "-" * 33 + "1", "it is nested deeper than 32 at character 43"),
        (f"region LIKE '{'_' * 256}'", "the pattern at character 13 has 256 characters, and 255 are allowed"),
        (7, "{unacceptable_type,byte}"),
    ],
)
def test_a_malformed_expression_is_refused(
    channel: Channel, name: str, expression: object, reason: str
) -> None:
    declare_stream(channel, name)
    with pytest.raises(Closed) as refused:
        consume(channel, name, "first", x_warren_filter=expression)
    described = f"queue '{name}' in vhost '/'"
    text = f"PRECONDITION_FAILED - invalid arg 'x-warren-filter' for {described}: {reason}"
    assert (refused.value.code, refused.value.text) == (406, text[:255])


def test_the_largest_expressions_are_taken(channel: Channel) -> None:
    consume(channel, "messages", "first", x_warren_filter="(" * 32 + "region = 'eu'" + ")" * 32)
    assert receive_offsets(channel, 2) == [0, 2]
    consume(channel, "messages", "first", x_warren_filter="region = 'eu'" + " OR TRUE" * 98)
    assert receive_offsets(channel, 8) == [*range(8)]


def test_an_expression_belongs_to_streams(channel: Channel, name: str) -> None:
    channel.declare(name, exclusive=True)
    with pytest.raises(Closed, match="of queue type rabbit_classic_queue") as refused:
        consume(channel, name, x_warren_filter="TRUE")
    assert refused.value.code == 406


def test_strict_refuses_expressions() -> None:
    with (
        InProcessBroker(config=BrokerConfig(strict=True)) as running,
        Connection(running.url) as connection,
    ):
        channel = connection.channel()
        declare_stream(channel, "s")
        with pytest.raises(Closed, match=r"x-warren-filter.*an extension of Warren's") as refused:
            consume(channel, "s", x_warren_filter="TRUE")
        assert refused.value.code == 406


def test_the_first_expression_is_logged(timed: Channel, caplog: pytest.LogCaptureFixture) -> None:
    declare_stream(timed, "s")
    for _ in range(2):
        consume(timed, "s", x_warren_filter="TRUE")
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    used = [text for text in texts if text.startswith("event=portability.feature_used")]
    assert len(used) == 1
    assert "rabbitmq_43=ignores_it" in used[0]


def test_an_expression_and_a_filter_value_apply_together(channel: Channel, name: str) -> None:
    declare_stream(channel, name)
    for number in range(12):
        region = "eu" if number % 2 else "us"
        publish(channel, name, b"", headers={"x-stream-filter-value": region, "number": number})
    consume(channel, name, "first", x_stream_filter="eu", x_warren_filter="number % 3 = 0")
    assert receive_offsets(channel, 2) == [3, 9]


def test_messages_that_are_passed_over_take_no_room_in_the_prefetch_limit(
    channel: Channel, name: str
) -> None:
    declare_stream(channel, name, x_stream_max_segment_size_bytes=4096)
    for number in range(60):
        publish(channel, name, b"x" * 500, headers={"number": number})
    consume(channel, name, "first", prefetch=1, x_warren_filter="number % 20 = 10")
    assert receive_offsets(channel, 3) == [10, 30, 50]
    publish(channel, name, b"", headers={"number": 70})
    assert receive_offsets(channel, 1) == [60]


def test_a_search_among_many_messages_is_done_in_slices(bulk: Bulk, timed: Channel, other: Channel) -> None:
    """Each slice looks at 32 messages; other clients are served meanwhile."""
    declare_stream(timed, "s", x_stream_max_segment_size_bytes=65536)
    publish_at_once(timed, "s", *[b"x"] * 3000)
    publish(timed, "s", b"", headers={"found": 1})
    before = bulk.slices()
    # None of the messages has bytes that the expression needs: each of them is looked at.
    with bulk.paused():
        consume(timed, "s", "first", x_warren_filter="NOT ([found] IS NULL)")
        assert other.declare("q", exclusive=True) == "q"
        assert not timed.delivered("s")
    assert receive_offsets(timed, 1) == [3000]
    assert bulk.slices() - before >= 80


def test_chunks_without_the_bytes_of_an_expression_are_passed_over_whole(bulk: Bulk, timed: Channel) -> None:
    declare_stream(timed, "s")
    committing = timed.connection.channel()
    committing.call(Tx.Select(), Tx.SelectOk)
    for _ in range(5):
        # One chunk.
        for _ in range(1000):
            committing.publish("s", b"x")
        committing.call(Tx.Commit(), Tx.CommitOk)
    publish(timed, "s", b"", headers={"found": "here"})
    before = bulk.slices()
    consume(timed, "s", "first", x_warren_filter="found = 'here' AND NOT (other IS NOT NULL)")
    assert receive_offsets(timed, 1) == [5000]
    assert bulk.slices() - before <= 20


def test_a_consumer_that_is_cancelled_during_a_search_gets_nothing_more(
    bulk: Bulk, timed: Channel, other: Channel
) -> None:
    declare_stream(timed, "s")
    publish_at_once(timed, "s", *[b"x"] * 1000)
    publish(timed, "s", b"", headers={"found": 1})
    with bulk.paused():
        tag = consume(timed, "s", "first", x_warren_filter="NOT ([found] IS NULL)")
        timed.cancel(tag)
    consume(other, "s", "first", x_warren_filter="NOT ([found] IS NULL)")
    assert receive_offsets(other, 1) == [1000]
    assert not timed.delivered("s")


def test_a_stream_that_is_deleted_during_a_search_cancels_the_consumer(bulk: Bulk, timed: Channel) -> None:
    declare_stream(timed, "s")
    publish_at_once(timed, "s", *[b"x"] * 1000)
    with bulk.paused():
        tag = consume(timed, "s", "first", x_warren_filter="NOT ([found] IS NULL)")
        timed.delete("s")
    assert timed.next_method(Basic.Cancel).consumer_tag == tag


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_the_stored_position_follows_a_filter(session: RestartableSession, how: str) -> None:
    """The position of a consumer is stored again when its filter has passed over 1,000 messages."""
    channel = session.channel
    declare_stream(channel, "s", x_stream_max_segment_size_bytes=8192)
    expression: dict[str, Any] = {
        "x_warren_filter": "number >= 10",
        "x_stream_automatic_offset_tracking": True,
    }
    for number in range(20):
        publish(channel, "s", b"", headers={"number": number})
    consume(channel, "s", "first", "reader", prefetch=2, **expression)
    first, second = channel.deliveries(2)
    assert [offset_of(first), offset_of(second)] == [10, 11]
    channel.ack(second.tag)
    session.sync()
    getattr(session, how)()
    # 10 was not acknowledged, 11 was: the position is 10.
    consume(session.channel, "s", "first", "reader", **expression)
    assert receive_offsets(session.channel, 10) == [*range(10, 20)]
    publish_at_once(session.channel, "s", *[b"x"] * 3000)
    publish(session.channel, "s", b"", headers={"number": 100})
    (message,) = session.channel.deliveries(1)
    assert offset_of(message) == 3020
    session.sync()
    getattr(session, how)()
    # The same reader without a filter shows what was stored.
    consume(session.channel, "s", "first", "reader", x_stream_automatic_offset_tracking=True)
    assert 1000 <= offset_of(session.channel.deliveries(1)[0]) <= 3020
