"""The queues of the load, one of each kind, and what may become of a message in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.faults.chaos.history import Rules

TTL_MS = 400
FAN = "chaos.fan"
DEFINED = "chaos.defined"
"""The exchange to which queues that come and go are bound."""


@dataclass(frozen=True)
class Spec:
    """A durable queue."""

    rules: Rules = field(default_factory=Rules)
    arguments: dict[str, Any] = field(default_factory=dict)
    fan: bool = False
    """It is bound to the exchange `FAN`."""


def _dead_letters(target: str, **arguments: Any) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target, **named}


LETTERS = Rules(ordered=False)

QUEUES: dict[str, Spec] = {
    "plain": Spec(),
    "busy": Spec(),
    "lazy": Spec(arguments={"x-queue-mode": "lazy"}),
    "quorum": Spec(arguments={"x-queue-type": "quorum", "x-delivery-limit": -1}),
    "priority": Spec(Rules(priorities=4), {"x-max-priority": 4}),
    "rejecting": Spec(Rules(dead_letters_to="rejected"), _dead_letters("rejected")),
    "rejected": Spec(LETTERS),
    "careful": Spec(
        Rules(dead_letters_to="narrow"),
        _dead_letters(
            "narrow",
            x_queue_type="quorum",
            x_delivery_limit=-1,
            x_dead_letter_strategy="at-least-once",
            x_overflow="reject-publish",
        ),
    ),
    "narrow": Spec(LETTERS, {"x-max-length": 20, "x-overflow": "reject-publish"}),
    "short-lived": Spec(
        Rules(dead_letters_to="expired", ttl=True), _dead_letters("expired", x_message_ttl=TTL_MS)
    ),
    "expired": Spec(LETTERS),
    "fan-1": Spec(fan=True),
    "fan-2": Spec(arguments={"x-queue-mode": "lazy"}, fan=True),
    "fan-3": Spec(Rules(dead_letters_to="rejected-fan"), _dead_letters("rejected-fan"), fan=True),
    "rejected-fan": Spec(LETTERS),
    "stream": Spec(
        Rules(stream=True), {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 200_000}, fan=True
    ),
    "tx-in": Spec(),
    "tx-1": Spec(),
    "tx-2": Spec(Rules(priorities=4), {"x-max-priority": 4}),
    "echo": Spec(),
}
"""`echo` is where consumers publish, so that a confirm says that their acknowledgements are on the disk."""

RULES = {name: spec.rules for name, spec in QUEUES.items()}
STREAMS = tuple(name for name, spec in QUEUES.items() if spec.rules.stream)
FANNED = tuple(name for name, spec in QUEUES.items() if spec.fan)
