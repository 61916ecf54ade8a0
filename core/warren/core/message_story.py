"""Story of a message: its events, those of the messages that caused it, and of those that it caused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

MESSAGES: Final = 500
"""Largest number of messages in a story."""
SEEN_BY_BOTH: Final = frozenset({"confirmed", "nacked", "returned", "delivered", "acked", "rejected"})
"""Events that an App and the broker both record; the App's are shown, if it captures events."""


@dataclass(frozen=True, slots=True)
class CapturedEvent:
    """A captured event.

    :ivar at: microseconds since 1970, by the clock of its source.
    :ivar application: name of the App, or of the broker, that recorded it.
    :ivar by: `sdk` or `broker`.
    """

    name: str
    at: int
    message_id: str
    application: str
    by: str
    source: str
    fields: dict[str, Any]

    def text(self, key: str) -> str:
        """Return a field as text; empty if it is missing."""
        value = self.fields.get(key)
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a story, between two participants: `source` does something to `target`.

    :ivar at: microseconds since 1970.
    :ivar text: what happened, such as `delivered, attempt 2`.
    :ivar target: equal to `source` for something that happened to one participant.
    :ivar is_answer: True for confirms and settlements, which a diagram shows as dashed lines.
    """

    at: int
    message_id: str
    name: str
    source: str
    target: str
    text: str
    is_answer: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """Steps of related messages, in the order of time.

    :ivar messages: ids of the messages, causes first, each with the id of its cause, or an empty text.
    """

    messages: Mapping[str, str]
    steps: tuple[Step, ...]

    @property
    def participants(self) -> list[str]:
        """Names of applications, exchanges and queues, in the order in which they take part."""
        return list(dict.fromkeys(name for step in self.steps for name in (step.source, step.target)))


class Causes:
    """Relation of messages to the messages in whose handlers they were published."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        """Ids of all messages that have an event."""
        self._cause: dict[str, str] = {}
        self._effects: dict[str, list[str]] = defaultdict(list)

    def add(self, event: CapturedEvent) -> None:
        """Note the message of an event, and its cause, if the event has one."""
        if not event.message_id:
            return
        self.known.add(event.message_id)
        cause = event.text("cause")
        if cause and event.message_id not in self._cause and cause != event.message_id:
            self._cause[event.message_id] = cause
            self._effects[cause].append(event.message_id)

    def related(self, message_ids: Iterable[str]) -> dict[str, str]:
        """Return messages with all that led to them and all that they led to, each with its cause or an empty text.

        Causes come first. At most `MESSAGES` are returned.
        """
        chain: list[str] = []
        for message_id in message_ids:
            seen = [message_id]
            while (cause := self._cause.get(seen[-1])) is not None and cause not in seen:
                seen.append(cause)
            chain += reversed(seen)
        found = dict.fromkeys(chain)
        waiting = list(message_ids)
        while waiting and len(found) < MESSAGES:
            effects = self._effects.get(waiting.pop(0), ())
            waiting += [each for each in effects if each not in found]
            found |= dict.fromkeys(effects)
        return {each: self._cause.get(each, "") for each in list(found)[:MESSAGES]}


def tell(messages: Mapping[str, str], events: Iterable[CapturedEvent]) -> Story:
    """Return the story of these messages.

    :param messages: ids of the messages with their causes.
    :param events: events of a stream; those of other messages are left out.
    """
    own = [event for event in events if event.message_id in messages]
    by_sdk = {(event.message_id, event.name) for event in own if event.by == "sdk"}
    shown = (
        event
        for event in own
        if event.by == "sdk" or event.name not in SEEN_BY_BOTH or (event.message_id, event.name) not in by_sdk
    )
    steps = [step for event in shown for step in _steps(event, (event.message_id, "published") in by_sdk)]
    # Sorting is stable: the events of one source stay in their order.
    steps.sort(key=lambda step: step.at)
    return Story(messages, tuple(steps))


def _steps(event: CapturedEvent, publish_is_known: bool) -> Iterator[Step]:
    exchange, key, queue = event.text("exchange"), event.text("routing_key"), event.text("queue")
    reason = event.text("reason")
    where = f"queue {queue}" if queue else ""
    target = f"exchange {exchange}" if exchange else f"queue {key}"
    who = event.application if event.by == "sdk" else f"client {event.text('connection')}".strip()

    def step(source: str, to: str, text: str, is_answer: bool = False) -> Step:
        return Step(event.at, event.message_id, event.name, source, to, text, is_answer)

    match event.name:
        case "published" if event.by == "sdk":
            again = " again, after a lost connection" if event.fields.get("redelivered") else ""
            yield step(who, target, f"publish {key}{again}" if exchange else f"publish{again}")
        case "published":
            if not event.text("connection"):
                yield step("broker", where, "dead letter or delayed message arrives")
                return
            if not publish_is_known:
                yield step(who, target, f"publish {key}")
            if where and where != target:
                yield step(target, where, f"route {key}")
            elif not where:
                yield step(target, target, f"not routed: {reason}")
        case "confirmed" | "nacked":
            yield step(f"exchange {exchange}" if exchange else "broker", who, event.name, True)
        case "returned":
            yield step(target, who, f"returned: {reason}", True)
        case "delivered":
            attempt, redelivered = event.text("attempt"), event.fields.get("redelivered")
            text = (
                "deliver"
                + (f", attempt {attempt}" if attempt else "")
                + (", redelivered" if redelivered else "")
            )
            yield step(where, who, text)
        case "acked" | "rejected" | "requeued":
            text = {"acked": "ack", "rejected": "reject", "requeued": "requeue"}[event.name]
            yield step(who, where, f"{text} ({reason})" if reason else text, True)
        case "dead_lettered" | "dropped" | "expired":
            text = {"dead_lettered": "dead-lettered", "dropped": "dropped", "expired": "expired"}[event.name]
            yield step(where, where, f"{text}: {reason}" if reason else text)


def timeline(story: Story) -> Iterator[str]:
    """Yield the lines of a story for people: each message with its cause, then the steps with their time."""
    names = {message_id: f"M{number}" for number, message_id in enumerate(story.messages, 1)}
    for message_id, cause in story.messages.items():
        yield f"{names[message_id]}  {message_id}" + (
            f"  caused by {names.get(cause, cause)}" if cause else ""
        )
    yield ""
    began = story.steps[0].at if story.steps else 0
    for step in story.steps:
        arrow = step.source if step.source == step.target else f"{step.source} -> {step.target}"
        yield f"{clock(step.at)}  +{(step.at - began) / 1e6:.3f} s  {names[step.message_id]}  {arrow}: {step.text}"


def clock(at: int) -> str:
    """Return a time in microseconds since 1970 as date and time of day in UTC."""
    return datetime.fromtimestamp(at / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
