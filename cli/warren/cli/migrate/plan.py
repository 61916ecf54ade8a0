"""Plan of a migration: what becomes of each queue, and what the target cannot have."""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from warren.broker.model import compat_checks
from warren.broker.model.compat_checks import PORTABILITY_RULES, PortabilityChecks
from warren.broker.model.policy.policy_keys import HA_KEYS
from warren.broker.model.queue.queue_arguments import queue_arguments
from warren.cli.migrate.broker_api import Json, Overview, QueueInfo
from warren.wire import field_tables
from warren.wire.reply_codes import AmqpError

INTERNAL: Final = "amq."
"""Beginning of the names of queues that a broker or a connection has made for itself."""


class Delays(enum.StrEnum):
    """Handling of queues in which messages wait for their TTL, to be dead-lettered then (delay queues)."""

    MOVE = "move"
    """Move their messages with the time that remains, or with the whole TTL if the source does not tell it."""
    WAIT = "wait"
    """Leave them to the source until they are empty, and move the messages that are due."""


class Way(enum.StrEnum):
    """Handling of a queue."""

    MOVE = "move"
    """Move all messages."""
    WAIT = "wait"
    """Leave the messages until their TTL is over, and move them from the queues that they go to."""
    LEAVE = "leave"
    """Move no messages."""


@dataclass(frozen=True)
class QueuePlan:
    """Handling of one queue, with its present numbers."""

    name: str
    type: str
    way: Way
    reason: str
    """Reason for another way than MOVE; empty for that."""
    ready: int
    unacknowledged: int
    consumers: int


@dataclass(frozen=True)
class Finding:
    """Feature that the target does not have, or has in another way."""

    subject: str
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}; {self.advice}"


@dataclass(frozen=True)
class Plan:
    """Plan of a migration."""

    queues: list[QueuePlan]
    problems: list[Finding]
    """Reasons why the migration cannot begin."""
    risks: list[Finding]
    """Features that the target ignores."""
    definitions: dict[str, int]
    """Number of the definitions of each kind that will be imported into the target."""
    connections: int
    """Connections to the source, without those of this tool."""
    delayed: int
    """Messages that wait in delayed exchanges and for delayed retries."""

    def as_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """Yield the plan as lines for a person."""
        imported = ", ".join(f"{count} {kind}" for kind, count in self.definitions.items())
        yield f"definitions to import into the target: {imported or 'none'}"
        for each in self.queues:
            numbers = f"{each.ready} ready, {each.unacknowledged} unacknowledged, {each.consumers} consumers"
            yield f"{each.way} {each.type} queue {each.name!r}: {numbers}{each.reason and f'; {each.reason}'}"
        if self.delayed:
            yield f"{self.delayed} messages wait in delayed exchanges or for delayed retries: moved when they are due"
        yield f"{self.connections} connections of clients to the source"
        for risk in self.risks:
            yield f"risk: {risk}"
        for problem in self.problems:
            yield f"cannot move {problem}"


def way_of(
    queue: QueueInfo, delays: Delays, included: re.Pattern[str], excluded: re.Pattern[str] | None
) -> tuple[Way, str]:
    """Return what becomes of a queue, and the reason if its messages are not just moved.

    :param included: pattern of the names of queues that are moved.
    :param excluded: pattern of the names of queues that are not moved; None for none.
    """
    if queue.exclusive:
        return Way.LEAVE, "exclusive: it ends with its connection"
    if queue.name.startswith(INTERNAL):
        return Way.LEAVE, "made by the broker for a connection or for itself"
    if included.fullmatch(queue.name) is None or (excluded and excluded.fullmatch(queue.name)):
        return Way.LEAVE, "not among the queues that the options choose"
    if queue.auto_delete:
        return Way.LEAVE, "auto-delete: it ends with its last consumer"
    if delays is Delays.WAIT and queue.message_ttl is not None and queue.dead_letters and not queue.consumers:
        return Way.WAIT, f"its messages wait for their TTL of {queue.message_ttl} ms"
    return Way.MOVE, ""


def find_problems(
    queues: Iterable[QueueInfo], ways: dict[str, Way], definitions: Json, target: Overview
) -> tuple[list[Finding], list[Finding]]:
    """Return what prevents the migration, and what the target ignores.

    :param definitions: definitions that will be imported into the target.
    """
    problems = [
        Finding(
            f"stream {queue.name!r}",
            "messages of a stream stay in it when they are read, so that they cannot be drained",
            "leave it out with --exclude",
        )
        for queue in queues
        if queue.type == "stream" and ways[queue.name] is Way.MOVE
    ]
    for exchange in definitions.get("exchanges", ()):
        if exchange["type"] not in target.exchange_types:
            rule = PORTABILITY_RULES["plugin_exchange"]
            text = f"the target has no exchange type {exchange['type']!r}"
            problems.append(Finding(f"exchange {exchange['name']!r}", text, rule.advice))
    if target.is_warren:
        return problems, []
    risks: list[Finding] = []
    for queue in definitions.get("queues", ()):
        _check_queue(queue, problems, risks)
    for policy in definitions.get("policies", ()):
        names = [name for name in policy["definition"] if name in HA_KEYS]
        if names:
            rule = PORTABILITY_RULES["mirror_policy"]
            problems.append(
                Finding(f"policy {policy['name']!r}", rule.text.format(", ".join(names)), rule.advice)
            )
    return problems, risks


def _check_queue(queue: Json, problems: list[Finding], risks: list[Finding]) -> None:
    """Check a queue by the rules of `warren broker --strict`."""
    # The rules log each use for a running broker; here they are findings.
    logging.getLogger(compat_checks.__name__).setLevel(logging.ERROR)
    subject = f"queue {queue['name']!r}"
    checks = PortabilityChecks(strict=True)
    try:
        raw = field_tables.encode(queue["arguments"])
        checks.check_queue(subject, queue["durable"], False, raw, queue_arguments(raw, subject))
    except AmqpError as error:
        advice = next((r.advice for n, r in PORTABILITY_RULES.items() if checks.was_used(n) and r.code), "")
        text = f"RabbitMQ answers {int(error.code)} {error.text.splitlines()[0]}"
        problems.append(Finding(subject, text, advice or "declare it anew on the source"))
        return
    for name, rule in PORTABILITY_RULES.items():
        if checks.was_used(name):
            verb = "deprecates" if rule.is_permitted else "ignores"
            risks.append(Finding(subject, f"RabbitMQ {verb} {rule.operation}", rule.advice))
