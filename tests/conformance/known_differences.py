"""Known differences between Warren (`compat=3.10`) and RabbitMQ 3.10.8, with their reasons. The documentation shows this
table.

A difference with a script is verified on both brokers; one without names the test that verifies it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pamqp import commands

from tests.conformance.steps import Publish, Script, Settle
from tests.conformance.written_scripts import get, publish, publish_to_queue, queue
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
    ),
    Difference(
        "a body above the largest message",
        "is read to its end, then refused (406); 128 MiB is the default",
        "is refused when its header announces it; 16 MiB is the default, as in RabbitMQ 4",
        "what will be refused need not be kept in memory",
        tested_by="tests/broker/test_frames.py",
    ),
    Difference(
        "`immediate=true`",
        "540 when the message is complete",
        "540 when the method has come",
        "the same code and text, earlier",
        tested_by="tests/broker/test_publish.py",
    ),
    Difference(
        "tune-ok outside the bounds",
        "the socket is closed after 3 s, without a word",
        "530 with the bound that was missed",
        "RabbitMQ 4 says it too; a client's author sees what is wrong",
        tested_by="tests/broker/test_handshake.py",
    ),
    Difference(
        "texts that are no UTF-8, and other input that makes RabbitMQ's reader or channel crash",
        "541, or a closed socket",
        "the code of the rule that is broken, or the bytes are taken as they are",
        "a crash is no rule",
        tested_by="tests/broker/test_frames.py",
    ),
    Difference(
        "confirm of a persistent message",
        "when it has been handed to the operating system",
        "when it has been synced to the disk",
        "a confirmed message outlives a power cut",
        tested_by="tests/broker/test_kill.py",
    ),
    Difference(
        "`product` and `version` of connection.start",
        "RabbitMQ 3.10.8",
        "Warren, with the RabbitMQ version that it follows",
        "clients decide by the version what they may use; the name says who speaks",
        tested_by="tests/broker/test_handshake.py",
    ),
]


def differences_table() -> str:
    """Return the table for the documentation."""
    lines = ["| What | RabbitMQ 3.10.8 | Warren | Why |", "|---|---|---|---|"]
    lines += [f"| {item.what} | {item.rabbitmq} | {item.warren} | {item.why} |" for item in KNOWN_DIFFERENCES]
    return "\n".join(lines) + "\n"


def portability_table() -> str:
    """Return the table of what `strict` refuses, for the documentation."""
    lines = ["| What | RabbitMQ 4.3 | Text | Source | Instead |", "|---|---|---|---|---|"]
    for row in PORTABILITY_RULES.values():
        does = "takes it, without its meaning" if row.code is None else f"{int(row.code)} {row.code.name}"
        text = f"`{row.text.splitlines()[0].replace('`', chr(39))}`" if row.text else ""
        lines.append(f"| {row.operation} | {does} | {text} | {row.source} | {row.advice} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(differences_table(), portability_table(), sep="\n", end="")
