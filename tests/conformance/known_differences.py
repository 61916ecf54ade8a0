"""Known differences between Warren and the RabbitMQ that it follows, with their reasons. The documentation shows this
table.

A difference with a script is verified on both brokers; one without names the test that verifies it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pamqp import commands

from tests.conformance.steps import Publish, Script, Settle
from tests.conformance.written_scripts import consume, get, publish, publish_to_queue, qos, queue
from warren.broker.model.compat_checks import PORTABILITY_RULES


@dataclass(frozen=True)
class Difference:
    """One known difference."""

    what: str
    rabbitmq: str
    warren: str
    why: str
    script: Script = ()
    """Script whose last step has different effects."""
    distinguishing_texts: tuple[str, str] = ("", "")
    """Text that only RabbitMQ's effects contain, and text that only Warren's contain."""
    versions: tuple[str, ...] = ("3.10",)
    """Versions of RabbitMQ that differ so, as far as it was looked at."""
    tested_by: str = ""
    """Test that shows a difference without a script."""


KNOWN_DIFFERENCES = [
    Difference(
        "`x-death` in a message that a client publishes",
        "is taken for history: the next death is added to it",
        "is replaced by the message's real history",
        "RabbitMQ does so since 4.0: a client could forge a history and end a cycle",
        (
            queue("q1", dead_letter_exchange="", dead_letter_routing_key="q2"),
            queue("q2"),
            publish_to_queue(
                "q1", b"1", headers={"x-death": [{"queue": "somewhere", "reason": "expired", "count": 7}]}
            ),
            get("q1"),
            Settle(0, 2, "reject", 0),
            get("q2"),
        ),
        ("somewhere", "x-first-death-reason"),
    ),
    Difference(
        "`x-delivery-limit` on a classic queue",
        "406, it belongs to quorum queues",
        "works on every queue",
        "no message has to be requeued for ever",
        (queue("q1", delivery_limit=3),),
        ("invalid arg 'x-delivery-limit'", "DeclareOk"),
    ),
    Difference(
        "basic.get from a quorum queue",
        "the reader counts as a consumer while it holds messages, and the first delivery has `x-delivery-count: 0`",
        "the header comes with the second delivery, and a reader is no consumer",
        "RabbitMQ 4 sends no count with the first delivery; who reads with basic.get consumes nothing",
        (
            queue("q1", durable=True, queue_type="quorum"),
            publish("", "q1", b"1", delivery_mode=2),
            get("q1"),
        ),
        ("x-delivery-count", "queue q1: 0 ready, 0 consumers"),
    ),
    Difference(
        "a message with a TTL and a higher priority than what waits already",
        "may stay past its TTL: its arrival sets no timer",
        "expires in time",
        "RabbitMQ looks at the head only if the queue was empty (rabbit_amqqueue_process); an expiry in time harms nobody",
        (
            queue("q1", max_priority=3),
            publish_to_queue("q1", b"1"),
            Publish(0, 1, "", "q1", b"2", commands.Basic.Properties(priority=2, expiration="0")),
        ),
        ("q1: 2 ready", "q1: 1 ready"),
        versions=("4.3", "3.10"),
    ),
    Difference(
        "the turn of a consumer that has reached its prefetch limit",
        "a classic queue takes it away when it next offers a message: whoever acknowledges before keeps the turn",
        "the next consumer has the turn at once; with room again, the consumer is behind the others",
        "only consumers that can take a message take turns, as on RabbitMQ's quorum queues",
        (
            queue("q1"),
            qos(1),
            consume("q1", "a"),
            qos(0),
            consume("q1", "b"),
            consume("q1", "c"),
            publish_to_queue("q1", b"1", client=1),
            publish_to_queue("q1", b"2", client=1),
            Settle(1, 1, "ack", 0),
            publish_to_queue("q1", b"3", client=1),
            publish_to_queue("q1", b"4", client=1),
        ),
        ("delivered to 'a'", "delivered to 'b'"),
        versions=("4.3", "3.10"),
    ),
    Difference(
        "a dead letter exchange, dead letter routing key or alternate exchange of more than 255 bytes, in arguments, "
        "policies and definitions; names, keys and virtual hosts of shovels",
        "is taken; a dead letter with such a key ends the connection (541)",
        "406, 400 over HTTP, an error of the command",
        "AMQP transfers at most 255 bytes: the dead letter would be lost",
        versions=("4.3",),
        tested_by="tests/broker/test_long_names.py",
    ),
    Difference(
        "a virtual host, an exchange, or a routing key over HTTP, of more than 255 bytes",
        "is taken",
        "400",
        "no client can name it, and no message be delivered",
        versions=("4.3",),
        tested_by="tests/broker/test_long_names.py",
    ),
    Difference(
        "`x-queue-mode` with an unknown value",
        "is not looked at",
        "406",
        "Warren has lazy queues",
        versions=("4.3",),
        tested_by="tests/broker/test_queue_arguments.py",
    ),
    Difference(
        "`x-delayed-retry-type`, `-min` and `-max` that have no meaning, or a maximum below the minimum",
        "are taken, and delay nothing; a maximum below the minimum is the delay",
        "406; with `strict` as in RabbitMQ",
        "who asks for a delay should get one",
        versions=("4.3",),
        tested_by="tests/broker/test_portability.py",
    ),
    Difference(
        "the consumer of a quorum queue that is deleted and declared again at once",
        "may be subscribed to the new queue and get none of its messages, as far as its prefetch reaches",
        "is cancelled",
        "RabbitMQ 4.3 does so; the messages would reach nobody",
        tested_by="tests/sdk/test_deleted_topology.py",
    ),
    Difference(
        "the next consumer of a queue with a single active one, when that is cancelled",
        "gets none of the messages that wait, and the queue crashes at the next publish",
        "gets them at once",
        "RabbitMQ 4.3 does so",
        tested_by="tests/broker/test_consumer_turns.py",
    ),
    Difference(
        "a client that has stopped reading",
        "is dropped if its socket has not taken all that waits within 30 s",
        "is dropped if it has read nothing for 30 s (`send_timeout`)",
        "who reads a large message slowly gets it",
        versions=("4.3", "3.10"),
        tested_by="tests/broker/test_send_timeout.py",
    ),
    Difference(
        "`x-consumer-timeout` on a classic queue",
        "406, it belongs to quorum queues",
        "works on every queue: the channel is closed, as RabbitMQ did before 4.3",
        "no message is held for ever by a consumer that hangs",
        versions=("4.3",),
        tested_by="tests/broker/test_ack_timeout.py",
    ),
    Difference(
        "text of the 406 for a delivery that timed out, where the channel is closed",
        "names a timeout of `-1 ms`",
        "names the timeout",
        "whoever reads it looks for the number",
        versions=("4.3",),
        tested_by="tests/broker/test_ack_timeout.py",
    ),
    Difference(
        "a body above the largest message",
        "is read to its end, then refused (406); 16 MiB is the default of 4.3, 128 MiB that of 3.10",
        "is refused when its header announces it; 16 MiB is the default",
        "what will be refused need not be kept in memory",
        versions=("4.3", "3.10"),
        tested_by="tests/broker/test_frames.py",
    ),
    Difference(
        "`immediate=true`",
        "540 when the message is complete",
        "540 when the method has come",
        "the same code and text, earlier",
        versions=("4.3", "3.10"),
        tested_by="tests/broker/test_publish.py",
    ),
    Difference(
        "tune-ok outside the bounds",
        "the socket is closed after 3 s, and only the log has the reason",
        "530 with the bound that was missed",
        "a client's author sees what is wrong",
        versions=("4.3", "3.10"),
        tested_by="tests/broker/test_handshake.py",
    ),
    Difference(
        "texts that are no UTF-8, and other input that makes RabbitMQ's reader or channel crash",
        "541, or a closed socket",
        "the code of the rule that is broken, or the bytes are taken as they are",
        "a crash is no rule",
        versions=("4.3", "3.10"),
        tested_by="tests/broker/test_frames.py",
    ),
    Difference(
        "confirm of a persistent message",
        "when it has been handed to the operating system",
        "when it has been synced to the disk",
        "a confirmed message outlives a power cut",
        versions=("4.3", "3.10"),
        tested_by="tests/broker/test_kill.py",
    ),
    Difference(
        "`product` and `version` of connection.start",
        "RabbitMQ, 4.3.6 or 3.10.8",
        "Warren, with the RabbitMQ version that it follows",
        "clients decide by the version what they may use; the name says who speaks",
        versions=("4.3", "3.10"),
        tested_by="tests/broker/test_handshake.py",
    ),
    Difference(
        "a protocol header that asks for no AMQP 0-9-1",
        "starts AMQP 1.0 if it is that of 1.0 with SASL; any other is answered with that header",
        "is answered with the header of AMQP 0-9-1, as by RabbitMQ 3.10",
        "Warren does not speak AMQP 1.0",
        versions=("4.3",),
        tested_by="tests/broker/test_handshake.py",
    ),
    Difference(
        "basic.qos with `global=true`",
        "counts for each new consumer",
        "limits the channel; with `strict` as RabbitMQ",
        "programs for earlier versions go on to work",
        versions=("4.3",),
        tested_by="tests/broker/test_delivery.py",
    ),
    Difference(
        "`CC` in a dead letter of a queue with `x-dead-letter-routing-key`",
        "stays, though its keys do not count any more",
        "is removed, as by RabbitMQ 3.10",
        "the header shows the keys by which the message was routed",
        versions=("4.3",),
        tested_by="tests/broker/test_dead_letters.py",
    ),
    Difference(
        "`redelivered` of a dead letter that a consumer rejected",
        "true as a rule, not always: a consumer had the message, in another queue",
        "false until this queue delivers it again, as by RabbitMQ 3.10",
        "the flag warns of a message that this queue's consumers may have handled",
        versions=("4.3",),
        tested_by="tests/broker/test_dead_letters.py",
    ),
    Difference(
        "a mandatory direct reply to a channel that is closed",
        "is dropped",
        "is returned (312), as by RabbitMQ 3.10",
        "a server learns that nobody waits for its reply",
        versions=("4.3",),
        tested_by="tests/broker/test_direct_reply.py",
    ),
    Difference(
        "direct replies after basic.cancel of their consumer",
        "are delivered",
        "are unroutable",
        "a client that cancelled expects no deliveries",
        versions=("4.3", "3.10"),
        tested_by="tests/broker/test_direct_reply.py",
    ),
    Difference(
        "queue.declare of `amq.rabbitmq.reply-to.` with anything behind it that is no address for replies",
        "541",
        "404, as by RabbitMQ 3.10",
        "a crash is no rule",
        versions=("4.3",),
        tested_by="tests/broker/test_direct_reply.py",
    ),
    Difference(
        "a stream declared again with another `x-max-age`",
        "406 with the age in milliseconds",
        "406 with the age as it was declared, as by RabbitMQ 3.10",
        "the text names what the client sent",
        versions=("4.3",),
        tested_by="tests/broker/test_stream_declare.py",
    ),
    Difference(
        "a message without `delivery_mode` in a stream",
        "is delivered with `delivery_mode` 1",
        "is delivered without, as by RabbitMQ 3.10",
        "a message arrives as it was published; 1 means the same",
        versions=("4.3",),
        tested_by="tests/broker/test_streams.py",
    ),
    Difference(
        "a consumer of a stream with `x-stream-filter`",
        "gets all messages of a chunk in which one of its values may occur",
        "gets only messages with one of its values",
        "a message is easily looked at; clients that filter again see no difference",
        versions=("4.3",),
        tested_by="tests/broker/test_stream_filters.py",
    ),
]


def differences_table() -> str:
    """Return the table for the documentation."""
    lines = ["| What | RabbitMQ | Versions | Warren | Why |", "|---|---|---|---|---|"]
    lines += [
        f"| {item.what} | {item.rabbitmq} | {', '.join(item.versions)} | {item.warren} | {item.why} |"
        for item in KNOWN_DIFFERENCES
    ]
    return "\n".join(lines) + "\n"


def portability_table() -> str:
    """Return the table of what `strict` refuses, for the documentation."""
    lines = ["| What | RabbitMQ 4.3 | Text | Source | Instead |", "|---|---|---|---|---|"]
    for row in PORTABILITY_RULES.values():
        does = "takes it" if row.is_permitted else "takes it, without its meaning"
        if row.is_extension:
            does += f"; {int(row.code or 0)} with `strict`"
        elif row.code is not None:
            does = f"{int(row.code)} {row.code.name}"
        text = f"`{row.text.splitlines()[0].replace('`', chr(39))}`" if row.text else ""
        lines.append(f"| {row.operation} | {does} | {text} | {row.source} | {row.advice} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(differences_table(), portability_table(), sep="\n", end="")
