"""`warren bench`: reports, verdicts on lost and reordered messages, and errors."""

from __future__ import annotations

import json
import struct
import subprocess
import uuid

import pytest
from pamqp import commands, header
from pamqp.body import ContentBody
from pamqp.frame import unmarshal

from tests.support.broker_process import BrokerProcess, warren
from tests.support.processes import closed_port
from tests.support.raw_client import raw_connection
from warren.broker.bench.load_topology import PublishTarget
from warren.broker.bench.message_flow import (
    ConfirmCounter,
    DeliveryChecker,
    DistinctMessages,
    PublishBuffer,
    bucket,
    bucket_value,
    consumer_tag,
    sequence_prefix,
)
from warren.wire.content import DELIVERY_MODE, join_content, make_header
from warren.wire.methods import frame

pytestmark = pytest.mark.slow


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in warren("bench", *arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=100)


def short_run(url: str, *arguments: str) -> dict[str, object]:
    """Run the load tool. Repeat the run if publishers or consumers made no progress in the measured second."""
    for _ in range(4):
        done = bench("--url", url, "--seconds", "1", "--warmup", "0.1", "--json", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        report: dict[str, object] = json.loads(done.stdout)
        if report["published_per_second"] and report["consumed_per_second"]:
            break
    return report


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--publishers", "2", "--consumers", "2", "--ack-every", "1"),
        ("--no-confirms", "--auto-ack", "--size", "64"),
        ("--persistent", "--window", "1", "--prefetch", "1"),
        ("--size", "300000", "--window", "10"),
        ("--size", "0"),
        ("--rate", "500"),
        ("--queues", "20", "--consumers", "3"),
        ("--fan-out", "3", "--consumers", "2", "--publishers", "2"),
        ("--exchange", "topic", "--queues", "3", "--fan-out", "2", "--keys", "5", "--bindings", "50"),
        ("--exchange", "direct", "--queues", "2", "--keys", "2", "--bindings", "8", "--persistent"),
        ("--exchange", "headers", "--queues", "3", "--headers", "4", "--bindings", "4"),
        ("--mixed",),
        ("--mixed", "--persistent", "--single-writes", "--publishers", "2"),
        ("--distinct", "--size", "150000-300000", "--window", "10", "--queues", "2"),
        ("--distinct", "--size", "16-64", "--queues", "2", "--no-confirms"),
        ("--priorities", "4", "--queue-argument", "x-queue-mode=lazy"),
        # A rate that basic.get can reach.
        ("--get", "--ack-every", "3", "--rate", "1000"),
        ("--get", "--auto-ack", "--queues", "2", "--rate", "1000"),
    ],
)
def test_every_message_of_a_run_is_accounted_for(amqp_url: str, arguments: tuple[str, ...]) -> None:
    report = short_run(amqp_url, *arguments)
    verdict = report["verdict"]
    assert isinstance(verdict, dict)
    copies = int(arguments[arguments.index("--fan-out") + 1]) if "--fan-out" in arguments else 1
    assert verdict["consumed"] == copies * verdict["published"] > 0
    assert verdict["checked"] == ("0" not in arguments)
    assert (verdict["lost"], verdict["duplicated"], verdict["reordered"]) == (0, 0, 0)
    assert float(str(report["consumed_per_second"])) > 0


def test_every_consumer_of_a_stream_gets_every_message(amqp_url: str) -> None:
    report = short_run(amqp_url, "--queue-type", "stream", "--consumers", "3", "--publishers", "2")
    verdict = report["verdict"]
    assert isinstance(verdict, dict)
    assert verdict["consumed"] == 3 * verdict["published"] > 0
    assert (verdict["lost"], verdict["duplicated"], verdict["reordered"]) == (0, 0, 0)


def test_a_rate_is_kept(amqp_url: str) -> None:
    """The rate is neither exceeded nor missed. A busy machine may distort one run, so up to four are made."""
    for _ in range(4):
        report = short_run(amqp_url, "--rate", "200", "--seconds", "4")
        verdict = report["verdict"]
        assert isinstance(verdict, dict)
        # Warm-up and the time after the four measured seconds are less than one second.
        assert verdict["published"] <= 5 * 200
        published = float(str(report["published_per_second"]))
        if 190 < published < 210:
            return
    raise AssertionError(f"the rate was kept in none of four runs, {published:.0f} a second in the last")


def test_processor_time_of_the_broker(broker: BrokerProcess) -> None:
    report = short_run(broker.url, "--pid", str(broker.pid))
    assert 0.1 < float(str(report["processor_us_per_message"])) < 1000


def test_a_named_queue_stays_and_its_older_messages_are_counted_apart(amqp_url: str) -> None:
    name = f"bench-{uuid.uuid4().hex}"
    with raw_connection(amqp_url) as client:
        client.open()
        client.declare_queue(name)
        client.publish("", name, struct.pack(">QQ", 1, 1))
        report = short_run(amqp_url, "--queue", name)
        assert isinstance(report["verdict"], dict)
        assert report["verdict"]["foreign"] == 1
        assert report["verdict"]["lost"] == 0
        assert client.declare_queue(name) == (name, 0, 0)
        client.delete_queue(name)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("--url", "http://h"), 2, "--url: not an AMQP URL"),
        (("--url", "amqp://guest:wrong@HOST"), 2, "403 ACCESS_REFUSED"),
        (("--url", "amqp://HOST/missing"), 2, "530 NOT_ALLOWED"),
        (("--url", "amqp://127.0.0.1:FREE"), 74, "no AMQP broker answers at amqp://guest@127.0.0.1"),
        (("--window", "0"), 2, "--window must be between"),
        (("--seconds", "long"), 2, "argument --seconds: invalid float value: 'long'"),
        (("--publishers", "0", "--consumers", "0"), 2, "nothing to do"),
        (("--exchange", "default", "--fan-out", "2"), 2, "--exchange default routes to one queue"),
        (("--queues", "400", "--fan-out", "400"), 2, "must not be more than 100,000"),
        (("--queues", "20000", "--size", "100000"), 2, "too many different messages"),
        (("--keys", "2"), 2, "--keys needs --exchange"),
        (("--size", "50-60"), 2, "--size with two sizes needs --distinct"),
        (("--mixed", "--size", "60-50"), 2, "--distinct needs a --size of 16 or more"),
        (("--distinct", "--size", "15"), 2, "--distinct needs a --size of 16 or more"),
        (("--mixed", "--size", "50-134217729"), 2, "--size must be between 0 and 134217728"),
        (("--size", "large"), 2, "argument --size: 'large' is neither a number of bytes nor two"),
        (("--mixed", "--headers", "3"), 2, "--distinct sets headers of its own"),
        (("--queue-argument", "x"), 2, "--queue-argument must be NAME=VALUE"),
        (("--url", "amqp://HOST", "--queue-argument", "x-max-length=-1"), 2, "406 PRECONDITION_FAILED"),
        (("--prefetch", "10", "--ack-every", "11"), 2, "--ack-every must not be greater than --prefetch"),
    ],
)
def test_wrong_use_and_failures_are_errors_of_one_line(
    amqp_url: str, arguments: tuple[str, ...], status: int, text: str
) -> None:
    place = amqp_url.rpartition("//")[2].rpartition("@")[2].rstrip("/")
    with closed_port() as port:
        done = bench(*[word.replace("HOST", place).replace("FREE", str(port)) for word in arguments])
    assert done.returncode == status
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "wrong" not in done.stderr


def deliver(number: int, body: bytes, *, redelivered: bool = False, tag: bytes = b"tag") -> bytes:
    arguments = (tag, number, redelivered, b"", b"queue")
    return frame(1, "basic.deliver", *arguments) + join_content(1, make_header(len(body), b"", 0), body)


def test_deliveries_are_checked_for_any_chunking() -> None:
    stream = b"".join(
        deliver(tag, struct.pack(">QQ", sequence_prefix(7, 0) + number, 0), redelivered=number == 2)
        for tag, number in enumerate([1, 2, 4, 3, 5], start=1)
    )
    for cut in range(1, len(stream)):
        deliveries = DeliveryChecker(run=7, publishers=1, ack_every=2, channel=1)
        deliveries.feed(stream[:cut], 0)
        deliveries.feed(stream[cut:], 0)
        deliveries.flush_counters()
        assert (deliveries.count, list(deliveries.counts), list(deliveries.sums)) == (5, [5], [15])
        assert (deliveries.reordered, deliveries.redelivered, deliveries.foreign) == (1, 1, 0)
        assert deliveries.acks == [frame(1, "basic.ack", 2, True), frame(1, "basic.ack", 4, True)]


def test_order_is_checked_for_each_queue_of_a_consumer() -> None:
    numbers = [(0, 2), (4000, 1), (4000, 3), (0, 4), (0, 4), (4000, 5)]
    deliveries = DeliveryChecker(run=7, publishers=1, ack_every=0, channel=1, queues=4001)
    for tag, (queue, number) in enumerate(numbers, start=1):
        body = struct.pack(">QQ", sequence_prefix(7, 0) + number, 0)
        deliveries.feed(deliver(tag, body, tag=consumer_tag(queue)), 0)
    deliveries.flush_counters()
    assert (deliveries.reordered, deliveries.counts, deliveries.sums) == (1, [6], [19])


def test_messages_of_another_run_are_only_counted() -> None:
    deliveries = DeliveryChecker(run=7, publishers=1, ack_every=0, channel=1)
    deliveries.feed(deliver(1, struct.pack(">QQ", sequence_prefix(8, 0) + 1, 0)), 0)
    deliveries.feed(deliver(2, struct.pack(">QQ", sequence_prefix(7, 1) + 1, 0)), 0)
    deliveries.flush_counters()
    assert (deliveries.count, deliveries.foreign, list(deliveries.counts)) == (2, 2, [0])
    assert deliveries.acks == []


def test_confirms_in_any_order() -> None:
    confirms = ConfirmCounter()
    frames = [("basic.ack", 2, False), ("basic.ack", 1, False), ("basic.ack", 5, True)]
    stream = b"".join(frame(1, name, *values) for name, *values in frames)
    stream += frame(1, "basic.nack", 7, True, False) + frame(0, "connection.blocked", b"full")
    for cut in range(1, len(stream)):
        confirms = ConfirmCounter()
        confirms.feed(stream[:cut])
        confirms.feed(stream[cut:])
        assert (confirms.settled, confirms.nacked) == (7, 2)
        assert confirms.other == [frame(0, "connection.blocked", b"full")]


def test_the_buffer_numbers_its_messages() -> None:
    turn = [PublishTarget(b"ex", key, b"\x02", 0x1000) for key in (b"queue", b"other")]
    batch = PublishBuffer(turn, 16, capacity=3, frame_max=131072, channel=1, prefix=sequence_prefix(7, 2))
    assert batch.capacity == 4
    batch.stamp(41, 2, 99, 1)
    content_header = make_header(16, b"\x02", 0x1000)
    expected = [
        frame(1, "basic.publish", 0, b"ex", key, False, False)
        + join_content(1, content_header, struct.pack(">QQ", sequence_prefix(7, 2) + number, 99))
        for number, key in ((41, b"other"), (42, b"queue"))
    ]
    assert bytes(batch.data[batch.length : 3 * batch.length]) == b"".join(expected)


def test_no_two_distinct_messages_are_alike() -> None:
    turn = [PublishTarget(b"ex", key, b"\x02", DELIVERY_MODE) for key in (b"queue", b"other")]
    messages = DistinctMessages(turn, 50, 2000, frame_max=131072, channel=1, prefix=sequence_prefix(7, 2))
    stream = messages.encode(1, 120, 99) + messages.encode(121, 80, 100)
    # One with a body in several frames.
    stream += DistinctMessages(turn, 9000, 9000, 4096, 1, sequence_prefix(7, 2)).encode(201, 1, 100)
    sizes: list[int] = []
    keys, ids, headers, bodies = set(), set(), set(), set()
    while stream:
        method, stream = unmarshalled(stream)
        head, stream = unmarshalled(stream)
        assert isinstance(method, commands.Basic.Publish)
        assert isinstance(head, header.ContentHeader)
        body = b""
        while len(body) < head.body_size:
            part, stream = unmarshalled(stream)
            assert isinstance(part, ContentBody)
            body += part.value
        assert struct.unpack_from(">Q", body)[0] == sequence_prefix(7, 2) + len(sizes) + 1
        assert head.properties.delivery_mode == 2
        assert head.properties.timestamp is not None
        assert head.properties.headers is not None
        assert sorted(head.properties.headers) == ["amount", "customer", "trace"]
        keys.add(method.routing_key)
        sizes.append(len(body))
        ids.add(head.properties.message_id)
        headers |= {str(value) for value in head.properties.headers.values()}
        bodies.add(body[16:])
    assert keys == {"queue", "other"}
    assert len(sizes) == len(ids) == len(bodies) == 201
    assert len(headers) == 3 * 201
    assert len(set(sizes)) > 150
    assert 50 <= min(sizes) <= max(sizes[:-1]) <= 2000
    assert sizes[-1] == 9000


def unmarshalled(stream: bytes) -> tuple[object, bytes]:
    """Return the first frame of a stream, and the rest of the stream."""
    size, _, found = unmarshal(stream)
    return found, stream[size:]


def test_latency_buckets_have_a_resolution_of_one_64th() -> None:
    for value in (0, 1, 127, 128, 1_000, 999_999, 60_000_000):
        assert bucket_value(bucket(value)) <= value <= bucket_value(bucket(value)) * 65 / 64
