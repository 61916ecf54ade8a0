"""Judge of the damage matrix: compares what a broker holds with what it must hold, and with what it reported.

It shares no code with the broker. It accepts three outcomes: everything is there; what is not there is reported; the
broker refuses to start with one line and changes no file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from tests.faults.damage.expected_state import ExpectedQueue, ExpectedState, QueueMessage
from tests.faults.damage.folder_files import LOG_SEGMENT, STREAM_SEGMENT
from tests.faults.damage.observed_state import UNREADABLE, ObservedState


class Outcome(Enum):
    """Outcome of one start on a damaged folder, in the order of severity."""

    RECOVERED = "recovered"
    REPORTED = "reported"
    REFUSED = "refused"
    SILENT = "silent"
    """A loss that no line names."""
    COLLATERAL = "collateral"
    """A loss of what the damaged file did not hold."""
    SECOND_LOSS = "second loss"
    """A loss after the first start, or a new report at the second start."""
    WRONG = "wrong"
    """A client got a wrong body, an offset that was used before, or the like. No report excuses that."""
    TRACEBACK = "traceback"
    UNCLEAR = "unclear"
    """The broker did not start, stop or answer, and not with one line."""


ACCEPTED = (Outcome.RECOVERED, Outcome.REPORTED, Outcome.REFUSED)


class LossKind(Enum):
    MESSAGE = "message"
    SETTLEMENT = "settlement"
    """A settled message came back."""
    MARK = "mark as redelivered"
    COUNT = "delivery count"
    ORDER = "order"
    READY = "number of ready messages"
    DEAD_LETTER = "dead letter header"
    QUEUE = "queue"
    DEFINITION = "definition"
    LOGIN = "login"
    STREAM_MESSAGE = "stream message"
    POSITION = "stored position"
    BODY = "body"
    OFFSET = "offset used twice"


WRONG_KINDS = (LossKind.BODY, LossKind.OFFSET, LossKind.ORDER, LossKind.DEAD_LETTER)


@dataclass(frozen=True)
class Loss:
    """A difference between what must be there and what is there."""

    kind: LossKind
    owner: str
    """Queue, stream, user or definition."""
    text: str
    run: int = 0
    """Run of the broker that wrote what is lost; 0 if it is in no log segment."""
    offset: int = -1
    """Offset of a stream's message."""


@dataclass
class Start:
    """Result of one start of a broker on the folder."""

    ready: bool
    status: int | None
    """Exit status of a broker that did not become ready, or that was stopped; None if it ended in no other way."""
    errors: str
    """Standard error."""
    observed: ObservedState | None = None
    added: ObservedState = field(default_factory=ObservedState)
    """Messages published after the start."""
    failure: str = ""
    """Exception of a client that the broker did not answer."""


@dataclass
class Verdict:
    outcome: Outcome
    text: str
    losses: list[Loss] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        return self.outcome in ACCEPTED

    def summary(self) -> str:
        """Return the losses, counted by kind, in one line."""
        return ", ".join(f"{count} × {kind}" for kind, count in self.counts().items())

    def counts(self) -> dict[str, int]:
        """Return the number of losses by kind."""
        return dict(sorted(Counter(loss.kind.value for loss in self.losses).items()))


LINE = re.compile(r"\S+ \S+ (DEBUG|INFO|WARNING|ERROR|CRITICAL) \S+ (event=\S+.*)")
HARMLESS = (
    "event=portability.feature_used",
    "event=connection.login_refused",
    "event=connection.closed_on_error",
    "event=broker.loop_blocked",
    "event=broker.loop_stalled",
    "event=store.sync_delayed",
    "event=store.sync_resumed",
)
"""Events that a client, a busy machine or a slow disk causes, not a damaged folder."""


def reports_of(errors: str) -> list[str]:
    """Return the logged events of level warning and above, without those that report no damage."""
    found = [match for line in errors.splitlines() if (match := LINE.fullmatch(line))]
    return [
        match[2]
        for match in found
        if match[1] in ("WARNING", "ERROR", "CRITICAL") and not match[2].startswith(HARMLESS)
    ]


def refusal_of(errors: str) -> str | None:
    """Return the one line with which the broker refused to start; None if there is none, or anything beside it."""
    others = [line for line in errors.splitlines() if line and not LINE.fullmatch(line)]
    return others[0] if len(others) == 1 and others[0].startswith("warren broker: ") else None


def find_losses(expected: ExpectedState, found: ObservedState, added: ObservedState) -> list[Loss]:
    """Return all differences, among them the messages of `added` that are missing."""
    losses: list[Loss] = []
    for name, queue in expected.queues.items():
        messages = found.queues[name]
        if messages is None:
            losses.append(Loss(LossKind.QUEUE, name, f"queue {name} is gone"))
            continue
        new = added.queues.get(name) or []
        losses += _queue_losses(expected, name, queue, messages, [message.token for message in new])
    losses += [Loss(LossKind.READY, name, f"{name}: {text}") for name, text in found.miscounted.items()]
    for name, content in expected.streams.items():
        read = found.streams[name]
        if read is None:
            losses.append(Loss(LossKind.QUEUE, name, f"stream {name} is gone"))
        else:
            tokens = [token for _, token in added.streams.get(name) or []]
            losses += _stream_losses(name, content, expected.next_offsets[name], read, tokens)
    for (name, tag), position in expected.positions.items():
        losses += _position_losses(name, tag, position, found)
    for text in sorted(expected.definitions - found.definitions):
        losses.append(Loss(LossKind.DEFINITION, _owner(text), f"gone: {text}"))
    for text in sorted(found.definitions - expected.definitions):
        losses.append(Loss(LossKind.DEFINITION, _owner(text), f"came back: {text}"))
    for user in expected.logins:
        if not found.logins.get(user):
            losses.append(Loss(LossKind.LOGIN, user, f"{user} cannot log in"))
    return losses


def _owner(definition: str) -> str:
    match = re.search(r'"(?:name|user|source)": "([^"]*)"', definition)
    return match[1] if match else definition


def _queue_losses(
    expected: ExpectedState, name: str, queue: ExpectedQueue, found: list[QueueMessage], added: list[str]
) -> Iterable[Loss]:
    tokens = [message.token for message in found]
    wanted = {message.token: message for message in queue.messages}
    for message in queue.messages:
        if message.token not in tokens:
            run = expected.published.get(f"{name} {message.token}", 0)
            yield Loss(LossKind.MESSAGE, name, f"{name} {message.token} is gone", run)
    for token in added:
        if token not in tokens:
            yield Loss(LossKind.MESSAGE, name, f"{name} {token} is gone, published after the damage", -1)
    for token, times in Counter(tokens).items():
        if times > 1 and token != UNREADABLE:
            yield Loss(LossKind.SETTLEMENT, name, f"{name} {token} exists {times} times")
    for message in found:
        token = message.token
        key = f"{name} {token}"
        if token == UNREADABLE:
            yield Loss(LossKind.BODY, name, f"{name}: a message with a wrong body")
        elif token in queue.settled:
            yield Loss(LossKind.SETTLEMENT, name, f"{key} came back", expected.settled[key])
        elif token not in wanted:
            if token not in added:
                yield Loss(LossKind.BODY, name, f"{key} was never in this queue")
        else:
            want = wanted[token]
            run = expected.settled.get(key, 0)
            if want.redelivered and not message.redelivered:
                yield Loss(LossKind.MARK, name, f"{key} is not marked as redelivered", run)
            if queue.counts_deliveries and message.deliveries != want.deliveries:
                text = f"{key} was delivered {want.deliveries} times, not {message.deliveries}"
                yield Loss(LossKind.COUNT, name, text, run)
            if message.death != want.death or message.priority != want.priority:
                yield Loss(LossKind.DEAD_LETTER, name, f"{key} has other headers: {message}")
    order = [token for token in tokens if token in wanted]
    if order != [token for token in wanted if token in set(order)]:
        yield Loss(LossKind.ORDER, name, f"{name}: messages out of order")


def _stream_losses(
    name: str, content: dict[int, str], next_offset: int, found: list[tuple[int, str]], added: list[str]
) -> Iterable[Loss]:
    offsets = dict(found)
    if len(offsets) < len(found) or [offset for offset, _ in found] != sorted(offsets):
        yield Loss(LossKind.ORDER, name, f"{name}: offsets twice or out of order")
    for offset, token in content.items():
        if offset not in offsets:
            yield Loss(LossKind.STREAM_MESSAGE, name, f"{name} offset {offset} is gone", offset=offset)
        elif offsets[offset] != token:
            kind = LossKind.BODY if offsets[offset] == UNREADABLE else LossKind.OFFSET
            yield Loss(kind, name, f"{name} offset {offset} holds {offsets[offset]}", offset=offset)
    for offset, _ in found:
        if offset not in content and offset < next_offset:
            yield Loss(LossKind.OFFSET, name, f"{name} offset {offset} was used before", offset=offset)
    for token in added:
        if token not in offsets.values():
            yield Loss(LossKind.STREAM_MESSAGE, name, f"{name} {token} is gone, published after the damage")


def _position_losses(name: str, tag: str, position: int, found: ObservedState) -> Iterable[Loss]:
    read = found.streams.get(name)
    if not read:
        return
    first = found.positions.get((name, tag), -1)
    wanted = min((offset for offset, _ in read if offset >= position), default=position)
    if first != wanted:
        yield Loss(LossKind.POSITION, name, f"{name}: {tag} continues at {first} instead of {wanted}")


def expected_again(first: ExpectedState, found: ObservedState, added: ObservedState) -> ExpectedState:
    """Return what must be there after the next start: what was found, and everything marked as redelivered.

    :param first: what had to be there at the first start; it tells what each queue is.
    """
    again = replace(first, queues={}, streams={}, positions={}, next_offsets={}, logins={})
    for name, messages in found.queues.items():
        if messages is None:
            continue
        counts = first.queues[name].counts_deliveries
        again.queues[name] = ExpectedQueue(
            [
                replace(message, redelivered=True, deliveries=message.deliveries + counts)
                for message in messages
            ],
            set(),
            counts,
        )
    for stream, read in found.streams.items():
        if read:
            again.streams[stream] = dict(read)
            again.next_offsets[stream] = read[-1][0] + 1
    again.positions = {
        key: position
        for key, position in found.positions.items()
        if key[0] in again.streams and position >= 0
    }
    again.definitions = found.definitions
    again.logins = {user: first.logins[user] for user, worked in found.logins.items() if worked}
    return again


def covered(loss: Loss, reports: list[str], path: str) -> bool:
    """Return whether a report names the owner of what is lost, or the damaged file."""
    return any(_names(report, loss.owner) or _names_file(report, path) for report in reports)


def _names(report: str, owner: str) -> bool:
    name = owner.rpartition(":")[2]
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", report) is not None


def _names_file(report: str, path: str) -> bool:
    if path in report:
        return True
    if match := re.fullmatch(LOG_SEGMENT, path):
        number = int(match[1])
        for first, last in re.findall(r"(?<!stream )segments? ?=?(\d+)(?: (?:to|and) (\d+))?", report):
            if int(first) <= number <= int(last or first):
                return "stream" not in report
        return False
    if match := re.fullmatch(STREAM_SEGMENT, path):
        stream, first = int(match[1], 16), int(match[2], 16)
        return bool(re.search(rf"stream {stream}\b.*segments? {first}\b", report)) or bool(
            re.search(rf"stream='?[\w.:/-]+'? segment={first}\b", report)
        )
    return path.startswith("definitions.") and "definitions" in report


def could_hold(loss: Loss, path: str, expected: ExpectedState, losses: list[Loss]) -> bool:
    """Return whether the damaged file held what is lost; damage elsewhere must not have touched it."""
    if re.fullmatch(LOG_SEGMENT, path):
        run = expected.runs[path]
        if loss.kind in (LossKind.MESSAGE, LossKind.SETTLEMENT, LossKind.COUNT, LossKind.MARK):
            return loss.run == run
        return loss.kind is LossKind.READY
    if match := re.fullmatch(STREAM_SEGMENT, path):
        first = int(match[2], 16)
        if loss.kind is LossKind.STREAM_MESSAGE:
            return loss.offset >= first
        return loss.kind is LossKind.POSITION
    if path.startswith("definitions."):
        gone = {other.owner for other in losses if other.kind in (LossKind.QUEUE, LossKind.DEFINITION)}
        return loss.kind in (LossKind.QUEUE, LossKind.DEFINITION, LossKind.LOGIN) or loss.owner in gone
    return False


def judge(
    path: str, expected: ExpectedState, first: Start, second: Start | None, changed: list[str]
) -> Verdict:
    """Return the outcome of two starts on a folder with one damaged file.

    :param path: the damaged file.
    :param second: the second start; None if the first was refused.
    :param changed: files that a refused start changed.
    """
    for start in (first, second):
        if start is not None and "Traceback (most recent call last)" in start.errors:
            return Verdict(Outcome.TRACEBACK, start.errors[-6000:])
    if not first.ready:
        line = refusal_of(first.errors)
        if first.status is None or first.status <= 0 or line is None:
            return Verdict(Outcome.UNCLEAR, f"status {first.status}: {first.errors[-1500:]} {first.failure}")
        if changed:
            return Verdict(Outcome.SECOND_LOSS, f"a refused start changed {', '.join(changed)}: {line}")
        return Verdict(Outcome.REFUSED, line)
    reports = reports_of(first.errors)
    if first.observed is None or first.failure or first.status:
        text = f"status {first.status}: {first.failure}: {first.errors[-1500:]}"
        return Verdict(Outcome.UNCLEAR, text, [], reports)
    losses = find_losses(expected, first.observed, first.added)
    verdict = _judge_first(path, expected, losses, reports)
    if not verdict.accepted:
        return verdict
    assert second is not None
    if second.observed is None or second.failure or second.status:
        text = f"second start: status {second.status}: {second.failure}: {second.errors[-1500:]}"
        return Verdict(Outcome.UNCLEAR, text, losses, reports)
    again = expected_again(expected, first.observed, first.added)
    more = find_losses(again, second.observed, second.added)
    if more:
        return Verdict(Outcome.SECOND_LOSS, "; ".join(loss.text for loss in more[:20]), more, reports)
    known = {_place(report) for report in reports}
    new = [report for report in reports_of(second.errors) if _place(report) not in known]
    if new:
        return Verdict(Outcome.SECOND_LOSS, f"the second start reports: {'; '.join(new)}", losses, reports)
    return verdict


def _place(report: str) -> str:
    """Return a report up to the offset that it names: new data behind a damaged place can change its description."""
    return re.sub(r"(, offset \d+): .*", r"\1", report)


def _judge_first(path: str, expected: ExpectedState, losses: list[Loss], reports: list[str]) -> Verdict:
    def verdict(outcome: Outcome, relevant: list[Loss]) -> Verdict:
        return Verdict(outcome, "; ".join(loss.text for loss in relevant[:20]), losses, reports)

    if wrong := [loss for loss in losses if loss.kind in WRONG_KINDS]:
        return verdict(Outcome.WRONG, wrong)
    if silent := [loss for loss in losses if not covered(loss, reports, path)]:
        return verdict(Outcome.SILENT, silent)
    if outside := [loss for loss in losses if not could_hold(loss, path, expected, losses)]:
        return verdict(Outcome.COLLATERAL, outside)
    return verdict(Outcome.REPORTED if losses else Outcome.RECOVERED, losses)
