"""The rules of a saga's record: what a transition makes of it, what it owes, and what it remembers.

State, data, the messages that are owed and the history are one record, changed by one compare-and-set: there is no
moment at which the state is new and the messages are forgotten. Nothing here reads a clock or a store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

from warren.patterns.saga.transitions import (
    COMPENSATED,
    COMPENSATING,
    COMPLETED,
    ENDED,
    CompensateSaga,
    Compensation,
    CompleteSaga,
    SagaTransition,
    StayInState,
    TransitionTo,
)
from warren.patterns.stores import RuleResult
from warren.sdk import ConfigError, Message

NAMESPACE: Final = UUID("0f6f2a34-9f0f-5d3e-9c36-4f2f3e0a9b11")
HISTORY: Final = 1000
"""Steps that are remembered; older ones are forgotten, and with them the ids of their messages."""
TIMEOUT: Final = "timeout"

Apply = Callable[["SagaInstance"], SagaTransition[Any] | None]


class PendingMessage(NamedTuple):
    """A message that is saved and not yet known to be published.

    :ivar visit: of a timeout, the entry of the state that it belongs to; else None.
    """

    message_id: str
    type: str
    body: str
    visit: int | None = None


class CompensationStep(NamedTuple):
    """A step that can be undone: the message, and the type of the message that says it is done."""

    type: str
    body: str
    until: str | None


class HistoryEntry(NamedTuple):
    """One line of the history."""

    at_ms: int
    message: str
    message_id: str
    before: str
    after: str
    sent: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class SagaInstance:
    """One saga.

    :ivar born: the id of the message that began it; the ids of what it sends are made from it.
    :ivar visit: counts the entries of states, so that a timeout knows whether it is still meant.
    :ivar sent: counts its messages.
    :ivar steps: counts its transitions, also those that the history has forgotten.
    """

    state: str
    data: str
    born: str
    visit: int = 0
    sent: int = 0
    steps: int = 0
    awaiting: str | None = None
    undo: tuple[CompensationStep, ...] = ()
    owed: tuple[PendingMessage, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    keep_until_ms: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def knows(self, message_id: str) -> bool:
        return any(passed.message_id == message_id for passed in self.history)


class MessageOutcome(Enum):
    """What became of a message."""

    PASSED = "passed"
    REPEATED = "repeated"
    """It was here before; what is still owed is published."""
    UNEXPECTED = "unexpected"
    """The saga has not begun, or has no transition for it in its state."""
    STALE = "stale"
    """A timeout of a state that the saga has left."""


class SagaResult(NamedTuple):
    verdict: MessageOutcome
    instance: SagaInstance | None


@dataclass(frozen=True, slots=True)
class SagaRules:
    """What one kind of saga is made of, as far as its records are concerned."""

    name: str
    keep_ms: int
    longest_ms: int
    timeouts: Mapping[str, int]
    sends: Mapping[str, type[Message]]
    hears: Collection[str]
    dump: Callable[[Any], str]

    def arrive(
        self,
        record: bytes | None,
        *,
        kind: str,
        message_id: str,
        start: Callable[[], TransitionTo[Any]] | None,
        apply: Apply,
        now_ms: int,
    ) -> RuleResult[SagaResult]:
        """A message is here.

        :param start: begins a saga where there is none, if the message may.
        :param apply: the transition of the state that the saga is in, or None if there is none.
        """
        held = read(record, now_ms)
        if held is None:
            if start is None:
                return RuleResult(record, SagaResult(MessageOutcome.UNEXPECTED, None))
            begun = SagaInstance(state="", data="", born=message_id)
            return self._write(self._move(begun, start(), kind, message_id, now_ms), now_ms)
        if held.knows(message_id):
            return RuleResult(record, SagaResult(MessageOutcome.REPEATED, held))
        if held.state == COMPENSATING and held.awaiting == kind:
            return self._write(self._undone(held, kind, message_id, now_ms), now_ms)
        taken = apply(held)
        if taken is None:
            return RuleResult(record, SagaResult(MessageOutcome.UNEXPECTED, held))
        return self._write(self._move(held, taken, kind, message_id, now_ms), now_ms)

    def time_out(
        self, record: bytes | None, *, visit: int, born: str, message_id: str, apply: Apply, now_ms: int
    ) -> RuleResult[SagaResult]:
        """The timeout of the entry `visit` is here; it counts only while the saga has not moved on."""
        held = read(record, now_ms)
        if held is None:
            return RuleResult(record, SagaResult(MessageOutcome.UNEXPECTED, None))
        if held.knows(message_id):
            return RuleResult(record, SagaResult(MessageOutcome.REPEATED, held))
        taken = apply(held) if (held.visit, held.born) == (visit, born) else None
        if taken is None:
            return RuleResult(record, SagaResult(MessageOutcome.STALE, held))
        return self._write(self._move(held, taken, TIMEOUT, message_id, now_ms), now_ms)

    def paid(self, record: bytes | None, published: Collection[str], *, now_ms: int) -> RuleResult[None]:
        """These messages are published: they are owed no longer."""
        held = read(record, now_ms)
        if held is None:
            return RuleResult(record, None)
        rest = tuple(owed for owed in held.owed if owed.message_id not in published)
        if len(rest) == len(held.owed):
            return RuleResult(record, None)
        step = self._write(replace(held, owed=rest), now_ms)
        return RuleResult(step.record, None, step.keep_ms)

    def _move(
        self, held: SagaInstance, taken: SagaTransition[Any], kind: str, message_id: str, now_ms: int
    ) -> SagaInstance:
        if taken.data is None and not held.steps:
            raise ConfigError(f"saga {self.name}: the start by {kind} returns no data")
        moved = held if taken.data is None else replace(held, data=self.dump(taken.data))
        note = ""
        messages: list[tuple[str, str]] = [self._dumped(message) for message in taken.send]
        if isinstance(taken, TransitionTo | StayInState) and taken.undo is not None:
            undo = taken.undo if isinstance(taken.undo, Compensation) else Compensation(taken.undo)
            until = undo.until.wire_type if undo.until is not None else None
            if until is not None and until not in self.hears:
                raise ConfigError(
                    f"saga {self.name} waits for {until}, which it does not hear: saga.hears(...)"
                )
            moved = replace(moved, undo=(*moved.undo, CompensationStep(*self._dumped(undo.message), until)))
        match taken:
            case TransitionTo():
                state = str(taken.state)
            case StayInState():
                state = held.state
            case CompleteSaga():
                state = COMPLETED
                moved = replace(moved, undo=(), awaiting=None)
            case CompensateSaga():
                state, note = COMPENSATING, taken.reason
        if state in (COMPENSATING, COMPENSATED) and moved.awaiting is None:
            moved, state, undone = _unwind(moved)
            messages += undone
        entered = not isinstance(taken, StayInState) or state != held.state
        return self._passed(moved, state, entered, messages, kind, message_id, held.state, note, now_ms)

    def _undone(self, held: SagaInstance, kind: str, message_id: str, now_ms: int) -> SagaInstance:
        moved, state, messages = _unwind(replace(held, awaiting=None))
        return self._passed(
            moved, state, state != held.state, messages, kind, message_id, held.state, "undone", now_ms
        )

    def _passed(
        self,
        moved: SagaInstance,
        state: str,
        entered: bool,
        messages: Sequence[tuple[str, str]],
        kind: str,
        message_id: str,
        before: str,
        note: str,
        now_ms: int,
    ) -> SagaInstance:
        visit = moved.visit + entered
        owed = list(moved.owed)
        sent = moved.sent
        for name, body in messages:
            owed.append(PendingMessage(self._id(moved.born, sent), name, body))
            sent += 1
        if entered and state in self.timeouts:
            owed.append(PendingMessage(self._id(moved.born, sent), TIMEOUT, state, visit))
            sent += 1
        names = tuple(name for name, _ in messages)
        line = HistoryEntry(now_ms, kind, message_id, before, state, names, note)
        history = (*moved.history, line)[-HISTORY:]
        return replace(
            moved,
            state=state,
            visit=visit,
            sent=sent,
            steps=moved.steps + 1,
            owed=tuple(owed),
            history=history,
        )

    def _id(self, born: str, number: int) -> str:
        return str(uuid5(NAMESPACE, f"{self.name}\n{born}\n{number}"))

    def _dumped(self, message: Message) -> tuple[str, str]:
        kind = type(message).wire_type
        if self.sends.get(kind) is not type(message):
            raise ConfigError(
                f"saga {self.name} sends a {type(message).__name__}, which is not named in sends=[...]"
            )
        return kind, message.model_dump_json(by_alias=True)

    def _write(self, instance: SagaInstance, now_ms: int) -> RuleResult[SagaResult]:
        # Its timeouts must still find a saga that has ended, or else one that is lost could not be told from it.
        ended_ms = self.keep_ms + max(self.timeouts.values(), default=0)
        keep_ms = ended_ms if instance.ended and not instance.owed else self.longest_ms
        instance = replace(instance, keep_until_ms=now_ms + keep_ms)
        return RuleResult(write(instance), SagaResult(MessageOutcome.PASSED, instance), keep_ms)


def _unwind(held: SagaInstance) -> tuple[SagaInstance, str, list[tuple[str, str]]]:
    """The messages that undo what was done last, up to the first whose answer is waited for; the state then."""
    undo = list(held.undo)
    messages: list[tuple[str, str]] = []
    while undo:
        last = undo.pop()
        messages.append((last.type, last.body))
        if last.until is not None:
            return replace(held, undo=tuple(undo), awaiting=last.until), COMPENSATING, messages
    return replace(held, undo=(), awaiting=None), COMPENSATED, messages


def read(record: bytes | None, now_ms: int) -> SagaInstance | None:
    """The saga of a record; None if there is none, or if it ended and was kept long enough."""
    if record is None:
        return None
    fields: dict[str, Any] = json.loads(record)
    fields["undo"] = tuple(CompensationStep(*entry) for entry in fields["undo"])
    fields["owed"] = tuple(PendingMessage(*entry) for entry in fields["owed"])
    fields["history"] = tuple(
        HistoryEntry(at, kind, message_id, before, after, tuple(sent), note)
        for at, kind, message_id, before, after, sent, note in fields["history"]
    )
    held = SagaInstance(**fields)
    return None if held.ended and not held.owed and held.keep_until_ms <= now_ms else held


def write(instance: SagaInstance) -> bytes:
    fields = {name: getattr(instance, name) for name in SagaInstance.__slots__}
    return json.dumps(fields, separators=(",", ":")).encode()


__all__ = [
    "TIMEOUT",
    "HistoryEntry",
    "MessageOutcome",
    "PendingMessage",
    "SagaInstance",
    "SagaResult",
    "SagaRules",
    "read",
    "write",
]
