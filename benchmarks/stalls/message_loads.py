"""Loads by messages: dead-lettering, expiry, requeueing, transactions, large ones, streams, compaction and paging.

Each load is a generator. It prepares queues and messages, yields, and then causes what is measured.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

from pamqp import commands
from pamqp.common import FieldTable

from benchmarks.stalls.load_client import BATCH, Control, LoadClient
from tests.support.frames import BASIC_ACK, BASIC_NACK, method, publish_frames
from tests.support.raw_client import encoded, made

QUEUE = "load"
LETTERS = "letters"
MIB = 1024 * 1024
EXPIRATION_BATCH = 2_000
"""Messages with the same TTL or delay, which is the time left until all are due."""


def _with_dead_letters(client: LoadClient, targets: int = 1) -> None:
    """Declare the queue `load`, which dead-letters into a fanout exchange with this many queues."""
    client.declare_exchange("dead", "fanout", durable=True)
    for number in range(targets):
        name = f"{LETTERS}-{number}"
        client.declare_queue(name, durable=True)
        client.bind(name, "dead")
    client.declare_queue(QUEUE, durable=True, arguments={"x-dead-letter-exchange": "dead"})


def nack_dead_letters(client: LoadClient, _: Control, count: int, targets: int = 1) -> Iterator[None]:
    """Reject all messages of a queue with a dead letter exchange by one basic.nack."""
    _with_dead_letters(client, targets)
    client.fill(count, "", QUEUE)
    client.hold(QUEUE, count)
    yield
    client.nack(0, requeue=False)
    client.sync()
    client.wait_ready(f"{LETTERS}-{targets - 1}", count)


def nack_fan_out(client: LoadClient, control: Control, count: int) -> Iterator[None]:
    """Do the same as `nack_dead_letters` with ten queues of dead letters."""
    return nack_dead_letters(client, control, count, targets=10)


def nack_to_all(client: LoadClient, control: Control, count: int) -> Iterator[None]:
    """Reject ten messages of a queue whose dead letter exchange has this many queues."""
    control.make_queues(count, source="amq.fanout")
    client.declare_queue(QUEUE, durable=True, arguments={"x-dead-letter-exchange": "amq.fanout"})
    client.fill(10, "", QUEUE)
    client.hold(QUEUE, 10)
    yield
    client.nack(0, requeue=False)
    client.sync()
    client.wait_ready(f"queue-{count - 1}", 10)


def policy_max_length(client: LoadClient, control: Control, count: int) -> Iterator[None]:
    """Limit a long queue with a dead letter exchange to ten messages by a policy."""
    _with_dead_letters(client)
    client.fill(count, "", QUEUE)
    yield
    control(
        "set_policy", name="limit", pattern=f"^{QUEUE}$", definition={"max-length": 10}, apply_to="queues"
    )
    client.wait_ready(f"{LETTERS}-0", count - 10)


def expiry(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Let all messages of a queue with a dead letter exchange expire at the same time."""
    _with_dead_letters(client)
    due = time.monotonic() + 10 + count / 10_000
    for start in range(0, count, EXPIRATION_BATCH):
        left = commands.Basic.Properties(
            delivery_mode=2, expiration=str(int((due - time.monotonic()) * 1000))
        )
        client.fill(min(EXPIRATION_BATCH, count - start), "", QUEUE, properties=[left])
    yield
    client.wait_ready(f"{LETTERS}-0", count)


def publish(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Publish messages that stay in their queue."""
    client.declare_queue(QUEUE, durable=True)
    yield
    client.fill(count, "", QUEUE)


def purge(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    client.declare_queue(QUEUE, durable=True)
    client.fill(count, "", QUEUE)
    yield
    client.purge(QUEUE)


def delete(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    client.declare_queue(QUEUE, durable=True)
    client.fill(count, "", QUEUE)
    yield
    client.delete_queue(QUEUE)


def ack_multiple(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    client.declare_queue(QUEUE, durable=True)
    client.fill(count, "", QUEUE)
    client.hold(QUEUE, count)
    yield
    client.ack(0, multiple=True)
    client.sync()


def close_with_unacked(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Close a connection that has unacknowledged messages."""
    client.declare_queue(QUEUE, durable=True)
    client.fill(count, "", QUEUE)
    client.hold(QUEUE, count)
    yield
    client.close()


def requeue(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Requeue all messages by one basic.nack, and take them again."""
    client.declare_queue(QUEUE, durable=True)
    client.fill(count, "", QUEUE)
    client.hold(QUEUE, count)
    yield
    client.nack(0, requeue=True)
    client.discard(count)


def delayed(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Let messages of a delayed exchange be due at the same time."""
    client.declare_exchange("late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    client.declare_queue(QUEUE, durable=True)
    client.bind(QUEUE, "late")
    due = time.monotonic() + 10 + count / 5_000
    for start in range(0, count, EXPIRATION_BATCH):
        left: FieldTable = {"x-delay": int((due - time.monotonic()) * 1000)}
        properties = commands.Basic.Properties(delivery_mode=2, headers=left)
        client.fill(min(EXPIRATION_BATCH, count - start), "late", "", properties=[properties])
    yield
    client.wait_ready(QUEUE, count)


def priorities(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Publish messages of 255 priorities, take them, requeue them at once and take them again."""
    client.declare_queue(QUEUE, durable=True, arguments={"x-max-priority": 255})
    yield
    client.fill(
        count,
        "",
        QUEUE,
        properties=[commands.Basic.Properties(delivery_mode=2, priority=level) for level in range(256)],
    )
    client.hold(QUEUE, count)
    client.nack(0, requeue=True)
    client.discard(count)
    client.ack(0, multiple=True)
    client.sync()


def transaction(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Commit a transaction of many publishes, then one of as many acknowledgements."""
    client.declare_queue(QUEUE, durable=True)
    client.call(commands.Tx.Select(), 1, commands.Tx.SelectOk)
    client.send_bytes(publish_frames(1, "", QUEUE, b"x" * 16, persistent=True) * count)
    client.sync()
    yield
    client.call(commands.Tx.Commit(), 1, commands.Tx.CommitOk)
    client.hold(QUEUE, count)
    client.ack(0, multiple=True)
    client.call(commands.Tx.Commit(), 1, commands.Tx.CommitOk)


def large_messages(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Publish messages of 128 MiB, and take them."""
    return _large_messages(client, count, 128 * MIB)


def largest_messages(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Publish messages of the largest size that is allowed by default, 16 MiB, and take them."""
    return _large_messages(client, count, 16 * MIB)


def _large_messages(client: LoadClient, count: int, size: int) -> Iterator[None]:
    client.declare_queue(QUEUE, durable=True)
    yield
    client.fill(count, "", QUEUE, body=bytes(size))
    client.consume(QUEUE, no_ack=True)
    client.discard(count)


def publish_fan_out(client: LoadClient, control: Control, count: int) -> Iterator[None]:
    """Publish ten messages that are routed to many queues."""
    control.make_queues(count, source="amq.fanout")
    yield
    client.fill(10, "amq.fanout", "")


def stream_read(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Read a stream from its first message, five times."""
    client.declare_queue(QUEUE, durable=True, arguments={"x-queue-type": "stream"})
    client.fill(count, "", QUEUE, body=b"x" * 100)
    yield
    prefetch = 50_000
    for number in range(5):
        channel = 10 + number
        client.open(channel)
        client.limit_prefetch(prefetch, channel)
        command = made(
            commands.Basic.Consume, queue=QUEUE, consumer_tag="tag", arguments={"x-stream-offset": "first"}
        )
        client.call(command, channel, commands.Basic.ConsumeOk)
        for start in range(0, count, prefetch):
            end = min(start + prefetch, count)
            client.discard(end - start)
            client.ack(end, multiple=True, channel=channel)


def compaction(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Acknowledge nineteen of twenty messages one by one, so that each segment of the log is nearly empty."""
    client.declare_queue(QUEUE, durable=True)
    client.fill(count, "", QUEUE, body=b"x" * 500)
    client.hold(QUEUE, count)
    yield
    for start in range(1, count + 1, BATCH):
        client.send_bytes(
            b"".join(
                method(1, BASIC_ACK, struct.pack(">QB", tag, 0))
                for tag in range(start, min(start + BATCH, count + 1))
                if tag % 20
            )
        )
    client.sync()


def paging(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Publish more messages than the broker has memory for, and consume them."""
    client.declare_queue(QUEUE, durable=True)
    yield
    client.fill(count, "", QUEUE, body=b"x" * 4096)
    client.consume(QUEUE, no_ack=True)
    client.discard(count)


def _dead_letter_tables(
    client: LoadClient, count: int, properties: commands.Basic.Properties
) -> Iterator[None]:
    """Publish messages with these headers to a headers exchange, and reject them one by one into a dead letter exchange."""
    _with_dead_letters(client)
    client.declare_exchange("by-headers", "headers", durable=True)
    for number in range(10):
        client.bind(QUEUE, "by-headers", arguments={"x-match": "any", f"name-{number}": number})
    yield
    client.fill(count, "by-headers", "", properties=[properties])
    for _each in range(count):
        client.call(commands.Basic.Get(queue=QUEUE, no_ack=False), 1, commands.Basic.GetOk)
        client.read_frame()
        client.read_frame()
        client.send_bytes(method(1, BASIC_NACK, struct.pack(">QB", 0, 1)))
    client.sync()


def large_tables(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Dead-letter messages with 5,000 headers, of 75 KB together."""
    headers: FieldTable = {f"name-{number}": number for number in range(5_000)}
    return _dead_letter_tables(client, count, commands.Basic.Properties(delivery_mode=2, headers=headers))


def nested_tables(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Dead-letter messages with 200 headers, each a table that is nested 60 deep; 64 are accepted."""
    inner: FieldTable = {}
    for _each in range(60):
        inner = {"n": inner}
    headers: FieldTable = {"name-0": 0, **{f"nested-{number}": inner for number in range(200)}}
    return _dead_letter_tables(client, count, commands.Basic.Properties(delivery_mode=2, headers=headers))


def drop_head(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Publish to a queue with x-max-length 10 and a dead letter exchange."""
    client.declare_exchange("dead", "fanout", durable=True)
    client.declare_queue(f"{LETTERS}-0", durable=True)
    client.bind(f"{LETTERS}-0", "dead")
    client.declare_queue(
        QUEUE, durable=True, arguments={"x-dead-letter-exchange": "dead", "x-max-length": 10}
    )
    yield
    client.fill(count, "", QUEUE)


def get_each(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Get each message of a queue with basic.get, without waiting for the replies."""
    client.declare_queue(QUEUE, durable=True)
    client.fill(count, "", QUEUE)
    one = encoded(made(commands.Basic.Get, queue=QUEUE, no_ack=True))
    yield
    for _each in range(0, count, BATCH):
        client.send_bytes(one * BATCH)
        for _got in range(BATCH):
            client.expect_content((60, 71))
