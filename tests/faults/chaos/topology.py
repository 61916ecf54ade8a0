"""Queues of the load, one of each kind, with the rules that the checker applies to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.chaos.history import QueueRules

TTL_MS = 400
FAN = "chaos.fan"
DEFINED = "chaos.defined"
"""Exchange that declared and deleted queues are bound to."""


@dataclass(frozen=True)
class QueueSpec:
    """A durable queue of the load."""

    rules: QueueRules = field(default_factory=QueueRules)
    arguments: dict[str, Any] = field(default_factory=dict)
    fan: bool = False
    """The queue is bound to the exchange `FAN`."""

    @property
    def stores_all_messages(self) -> bool:
        """True if the queue keeps messages of every delivery mode over restarts."""
        return self.arguments.get("x-queue-type") in ("quorum", "stream")


def _dead_letters(target: str, **arguments: Any) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target, **named}


DEAD_LETTERS = QueueRules(ordered=False)

QUEUES: dict[str, QueueSpec] = {
    "plain": QueueSpec(),
    "busy": QueueSpec(),
    "lazy": QueueSpec(arguments={"x-queue-mode": "lazy"}),
    "quorum": QueueSpec(arguments={"x-queue-type": "quorum", "x-delivery-limit": -1}),
    "priority": QueueSpec(QueueRules(priorities=4), {"x-max-priority": 4}),
    "rejecting": QueueSpec(QueueRules(dead_letters_to="rejected"), _dead_letters("rejected")),
    "rejected": QueueSpec(DEAD_LETTERS),
    "careful": QueueSpec(
        QueueRules(dead_letters_to="narrow"),
        _dead_letters(
            "narrow",
            x_queue_type="quorum",
            x_delivery_limit=-1,
            x_dead_letter_strategy="at-least-once",
            x_overflow="reject-publish",
        ),
    ),
    "narrow": QueueSpec(
        DEAD_LETTERS,
        {
            "x-queue-type": "quorum",
            "x-delivery-limit": -1,
            "x-max-length": 20,
            "x-overflow": "reject-publish",
        },
    ),
    "short-lived": QueueSpec(
        QueueRules(dead_letters_to="expired", ttl=True), _dead_letters("expired", x_message_ttl=TTL_MS)
    ),
    "expired": QueueSpec(DEAD_LETTERS),
    "fan-1": QueueSpec(fan=True),
    "fan-2": QueueSpec(arguments={"x-queue-mode": "lazy"}, fan=True),
    "fan-3": QueueSpec(QueueRules(dead_letters_to="rejected-fan"), _dead_letters("rejected-fan"), fan=True),
    "rejected-fan": QueueSpec(DEAD_LETTERS),
    "stream": QueueSpec(
        QueueRules(stream=True),
        {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 200_000},
        fan=True,
    ),
    "tx-in": QueueSpec(),
    "tx-1": QueueSpec(arguments={"x-queue-type": "quorum", "x-delivery-limit": -1}),
    "tx-2": QueueSpec(QueueRules(priorities=4), {"x-max-priority": 4}),
    "echo": QueueSpec(),
    "hoard": QueueSpec(),
}
"""The queues by name. Consumers publish to `echo`: the confirm proves that their earlier acknowledgements are on disk.
Nobody consumes from `hoard` before the end: its small messages stay behind in segments whose other messages have left, which
are then compacted."""

RULES = {name: spec.rules for name, spec in QUEUES.items()}
STREAMS = tuple(name for name, spec in QUEUES.items() if spec.rules.stream)
FANNED = tuple(name for name, spec in QUEUES.items() if spec.fan)


def stores_all_messages(queues: Iterable[str]) -> bool:
    """Return True if queues, and those of their dead letters, keep messages of every delivery mode over restarts."""
    names = [queue for queue in queues if queue in QUEUES]
    targets = [QUEUES[name].rules.dead_letters_to for name in names]
    return all(QUEUES[name].stores_all_messages for name in [*names, *filter(None, targets)])
