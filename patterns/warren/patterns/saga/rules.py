"""Rules of a saga's record: transitions, compensations, pending messages and history.

State, data, the messages to publish and the history are one record, changed by one compare-and-set: there is no moment at
which the state is new and the messages are lost. The rules read neither a clock nor a store.
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
from warren.sdk.extend import as_json_text

NAMESPACE: Final = UUID("0f6f2a34-9f0f-5d3e-9c36-4f2f3e0a9b11")
MAX_HISTORY: Final = 1000
"""Largest number of history entries of a saga. Older entries are deleted, and duplicates of their messages are not
recognised any more."""
TIMEOUT: Final = "timeout"
STORED_NAMES: Final = {
    "state": "state",
    "data": "data",
    "started_by": "born",
    "entry": "visit",
    "messages_sent": "sent",
    "transitions": "steps",
    "awaited": "awaiting",
    "compensations": "undo",
    "pending": "owed",
    "history": "history",
    "keep_until_ms": "keep_until_ms",
}
"""Name of each field of `SagaInstance` in the stored record; some differ from the field's own name."""

ApplyTransition = Callable[["SagaInstance"], SagaTransition[Any] | None]


class PendingMessage(NamedTuple):
    """Message that is saved with a saga's state and not yet known to be published.

    :ivar entry: for a timeout, the number of the state entry (`SagaInstance.entry`) to which it belongs; else None.
    """

    message_id: str
    type: str
    body: str
    entry: int | None = None


class CompensationStep(NamedTuple):
    """Stored compensation of a saga's step: type and body of the message to send, and the type of the answer to wait
    for before the next compensation, if any."""

    type: str
    body: str
    until: str | None


class HistoryEntry(NamedTuple):
    """Transition of a saga in its history: the message that caused it, the states before and after, and the types of
    the messages sent."""

    at_ms: int
    message: str
    message_id: str
    before: str
    after: str
    sent: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class SagaInstance:
    """Stored state of one saga.

    :ivar data: its data as JSON.
    :ivar started_by: id of the message that started it; the ids of the messages that it sends are derived from it.
    :ivar entry: number of times that the saga has entered a state; a timeout counts only if this number has not changed
        since it was created.
    :ivar messages_sent: number of messages that the saga has sent so far.
    :ivar transitions: number of transitions so far, including those that are no longer in the history.
    :ivar awaited: type of the answer for which the compensation waits.
    :ivar compensations: compensations of the completed steps; the last one is sent first.
    :ivar pending: messages that are not yet known to be published.
    """

    state: str
    data: str
    started_by: str
    entry: int = 0
    messages_sent: int = 0
    transitions: int = 0
    awaited: str | None = None
    compensations: tuple[CompensationStep, ...] = ()
    pending: tuple[PendingMessage, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    keep_until_ms: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def has_handled(self, message_id: str) -> bool:
        return any(entry.message_id == message_id for entry in self.history)


class MessageOutcome(Enum):
    """Effect of a message on its saga: a transition, or the reason why there is none."""

    PASSED = "passed"
    """The message caused a transition."""
    REPEATED = "repeated"
    """The message had been handled before. The saga's pending messages are published again."""
    UNEXPECTED = "unexpected"
    """The saga has not been started, or has no transition for the message in its present state."""
    STALE = "stale"
    """The message is a timeout of a state that the saga has left."""


class SagaResult(NamedTuple):
    """Effect of a message on its saga, and the saga's stored state afterwards (None if there is no such saga)."""

    outcome: MessageOutcome
    instance: SagaInstance | None


@dataclass(frozen=True, slots=True)
class SagaRules:
    """Rules of one kind of saga: functions that compute a saga's next record from the present one.

    :ivar keep_ms: how long a saga that has ended is remembered.
    :ivar longest_ms: how long a saga that has not ended is kept after its last transition.
    :ivar timeouts: timeout of each state in milliseconds, by the state's name.
    :ivar sends: classes of the messages that transitions send, by their wire type (property `type`).
    :ivar receives: class and key of the messages that the saga receives, by their wire types (property `type`).
    :ivar dump: returns the saga's data as JSON.
    """

    name: str
    keep_ms: int
    longest_ms: int
    timeouts: Mapping[str, int]
    sends: Mapping[str, type[Message]]
    receives: Mapping[str, tuple[type[Message], object]]
    dump: Callable[[Any], str]

    def arrive(
        self,
        record: bytes | None,
        *,
        kind: str,
        message_id: str,
        start: Callable[[], TransitionTo[Any]] | None,
        apply: ApplyTransition,
        now_ms: int,
    ) -> RuleResult[SagaResult]:
        """Compute the saga's record after a message. The result's `answer` is the message's effect, and the saga's
        state and data after it.

        :param record: present record of the saga; None if there is none.
        :param kind: wire type of the message (property `type`).
        :param message_id: id of the message; one whose transition is in the saga's history has no effect again.
        :param start: returns the first transition of a new saga; None if the message does not start one.
        :param apply: returns the transition for the message in the saga's present state, or None if there is none.
        :param now_ms: present time in milliseconds since the epoch.
        """
        held = read(record, now_ms)
        if held is None:
            if start is None:
                return RuleResult(record, SagaResult(MessageOutcome.UNEXPECTED, None))
            new = SagaInstance(state="", data="", started_by=message_id)
            return self._write(self._apply(new, start(), kind, message_id, now_ms), now_ms)
        if held.has_handled(message_id):
            return RuleResult(record, SagaResult(MessageOutcome.REPEATED, held))
        if held.state == COMPENSATING and self._is_awaited(held, kind):
            return self._write(self._continue_compensation(held, kind, message_id, now_ms), now_ms)
        transition = apply(held)
        if transition is None:
            return RuleResult(record, SagaResult(MessageOutcome.UNEXPECTED, held))
        return self._write(self._apply(held, transition, kind, message_id, now_ms), now_ms)

    def time_out(
        self,
        record: bytes | None,
        *,
        entry: int,
        started_by: str,
        message_id: str,
        apply: ApplyTransition,
        now_ms: int,
    ) -> RuleResult[SagaResult]:
        """Compute the saga's record after the timeout of one of its states. The result's `answer` is the timeout's
        effect, and the saga's state and data after it.

        The timeout has no effect if the saga has left the state since, even if it has entered it again.

        :param record: present record of the saga; None if there is none.
        :param entry: number of the state entry in which the timeout was created.
        :param started_by: id of the message that started the saga for which the timeout was created.
        :param message_id: id of the timeout's message.
        :param apply: returns the transition for the timeout in the saga's present state, or None if there is none.
        :param now_ms: present time in milliseconds since the epoch.
        """
        held = read(record, now_ms)
        if held is None:
            return RuleResult(record, SagaResult(MessageOutcome.UNEXPECTED, None))
        if held.has_handled(message_id):
            return RuleResult(record, SagaResult(MessageOutcome.REPEATED, held))
        transition = apply(held) if (held.entry, held.started_by) == (entry, started_by) else None
        if transition is None:
            return RuleResult(record, SagaResult(MessageOutcome.STALE, held))
        return self._write(self._apply(held, transition, TIMEOUT, message_id, now_ms), now_ms)

    def confirm(self, record: bytes | None, published: Collection[str], *, now_ms: int) -> RuleResult[None]:
        """Compute the saga's record without the pending messages that the broker has confirmed.

        :param record: present record of the saga; None if there is none.
        :param published: ids of the confirmed messages.
        :param now_ms: present time in milliseconds since the epoch.
        """
        held = read(record, now_ms)
        if held is None:
            return RuleResult(record, None)
        rest = tuple(message for message in held.pending if message.message_id not in published)
        if len(rest) == len(held.pending):
            return RuleResult(record, None)
        result = self._write(replace(held, pending=rest), now_ms)
        return RuleResult(result.record, None, result.keep_ms)

    def _apply(
        self, held: SagaInstance, transition: SagaTransition[Any], kind: str, message_id: str, now_ms: int
    ) -> SagaInstance:
        if transition.data is None and not held.transitions:
            raise ConfigError(f"saga {self.name}: the start by {kind} must return data")
        moved = held if transition.data is None else replace(held, data=self.dump(transition.data))
        note = ""
        messages: list[tuple[str, str]] = [self._dumped(message) for message in transition.send]
        if isinstance(transition, TransitionTo | StayInState) and transition.compensation is not None:
            step = self._compensation_step(transition.compensation)
            moved = replace(moved, compensations=(*moved.compensations, step))
        match transition:
            case TransitionTo():
                state = str(transition.state)
            case StayInState():
                state = held.state
            case CompleteSaga():
                state = COMPLETED
                moved = replace(moved, compensations=(), awaited=None)
            case CompensateSaga():
                state, note = COMPENSATING, transition.reason
        if state in (COMPENSATING, COMPENSATED) and moved.awaited is None:
            moved, state, compensating = _next_compensations(moved)
            messages += compensating
        entered = not isinstance(transition, StayInState) or state != held.state
        return self._record_transition(
            moved, state, entered, messages, kind, message_id, held.state, note, now_ms
        )

    def _compensation_step(self, declared: Message | Compensation) -> CompensationStep:
        compensation = declared if isinstance(declared, Compensation) else Compensation(declared)
        until = compensation.until.wire_type if compensation.until is not None else None
        if until is not None and until not in self.receives:
            raise ConfigError(
                f"saga {self.name} waits for {until}, which it does not receive: call saga.receives(...)"
            )
        return CompensationStep(*self._dumped(compensation.message), until)

    def _continue_compensation(
        self, held: SagaInstance, kind: str, message_id: str, now_ms: int
    ) -> SagaInstance:
        moved, state, messages = _next_compensations(replace(held, awaited=None))
        return self._record_transition(
            moved, state, state != held.state, messages, kind, message_id, held.state, "undone", now_ms
        )

    def _record_transition(
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
        entry = moved.entry + entered
        pending = list(moved.pending)
        sent = moved.messages_sent
        for name, body in messages:
            pending.append(PendingMessage(self._id(moved.started_by, sent), name, body))
            sent += 1
        if entered and state in self.timeouts:
            pending.append(PendingMessage(self._id(moved.started_by, sent), TIMEOUT, state, entry))
            sent += 1
        names = tuple(name for name, _ in messages)
        line = HistoryEntry(now_ms, kind, message_id, before, state, names, note)
        return replace(
            moved,
            state=state,
            entry=entry,
            messages_sent=sent,
            transitions=moved.transitions + 1,
            pending=tuple(pending),
            history=(*moved.history, line)[-MAX_HISTORY:],
        )

    def _is_awaited(self, held: SagaInstance, kind: str) -> bool:
        """Return whether the compensation waits for a message of this type, under its present or a former name."""
        received = self.receives.get(kind)
        return held.awaited == kind or (
            held.awaited is not None and received is not None and held.awaited in received[0].wire_aliases
        )

    def _id(self, started_by: str, number: int) -> str:
        return str(uuid5(NAMESPACE, f"{self.name}\n{started_by}\n{number}"))

    def _dumped(self, message: Message) -> tuple[str, str]:
        kind = type(message).wire_type
        if self.sends.get(kind) is not type(message):
            raise ConfigError(
                f"saga {self.name} sends a {type(message).__name__}, which is not named in sends=[...]"
            )
        return kind, as_json_text(message)

    def _write(self, instance: SagaInstance, now_ms: int) -> RuleResult[SagaResult]:
        # The timeouts of a saga that has ended must still find its record, to distinguish it from a lost one.
        ended_ms = self.keep_ms + max(self.timeouts.values(), default=0)
        keep_ms = ended_ms if instance.ended and not instance.pending else self.longest_ms
        instance = replace(instance, keep_until_ms=now_ms + keep_ms)
        return RuleResult(write(instance), SagaResult(MessageOutcome.PASSED, instance), keep_ms)


def _next_compensations(held: SagaInstance) -> tuple[SagaInstance, str, list[tuple[str, str]]]:
    """Remove the compensations to send now from the saga: those of the latest steps, up to and including the first
    whose answer must be awaited. Return the saga without them, its new state, and the wire type (property `type`) and
    body of each message to send."""
    steps = list(held.compensations)
    messages: list[tuple[str, str]] = []
    while steps:
        last = steps.pop()
        messages.append((last.type, last.body))
        if last.until is not None:
            return replace(held, compensations=tuple(steps), awaited=last.until), COMPENSATING, messages
    return replace(held, compensations=(), awaited=None), COMPENSATED, messages


def read(record: bytes | None, now_ms: int) -> SagaInstance | None:
    """Decode a saga from its record; None if there is no record, or the saga ended and was kept long enough: its
    `keep_until_ms` is not after `now_ms`."""
    if record is None:
        return None
    stored: dict[str, Any] = json.loads(record)
    fields = {name: stored[key] for name, key in STORED_NAMES.items()}
    fields["compensations"] = tuple(CompensationStep(*step) for step in fields["compensations"])
    fields["pending"] = tuple(PendingMessage(*message) for message in fields["pending"])
    fields["history"] = tuple(
        HistoryEntry(at, kind, message_id, before, after, tuple(sent), note)
        for at, kind, message_id, before, after, sent, note in fields["history"]
    )
    held = SagaInstance(**fields)
    return None if held.ended and not held.pending and held.keep_until_ms <= now_ms else held


def write(instance: SagaInstance) -> bytes:
    """Encode a saga as its record for the store."""
    fields = {key: getattr(instance, name) for name, key in STORED_NAMES.items()}
    return json.dumps(fields, separators=(",", ":")).encode()


__all__ = [
    "TIMEOUT",
    "ApplyTransition",
    "HistoryEntry",
    "MessageOutcome",
    "PendingMessage",
    "SagaInstance",
    "SagaResult",
    "SagaRules",
    "read",
    "write",
]
