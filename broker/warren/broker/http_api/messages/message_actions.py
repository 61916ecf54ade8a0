"""Deletion, move and replay of the ready messages that a request selects, one by one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

from warren.broker.http_api.api_error import ApiError
from warren.broker.http_api.call import Call
from warren.broker.http_api.messages.dead_letter import DeadLetter
from warren.broker.http_api.messages.letter_edit import LetterEdit, replayed_content
from warren.broker.http_api.messages.message_filter import MessageFilter, decode_properties
from warren.broker.http_api.messages.message_ids import MessageId
from warren.broker.http_api.messages.queue_browser import (
    BEFORE_ALL,
    STEP,
    Position,
    highest_priority,
    place_of,
    position_of,
    ready_after,
)
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_in_slices
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue
from warren.broker.model.server_names import LONGEST_NAME
from warren.broker.operations.message_moves import MoveRefused, delete_message, move_message
from warren.wire.content import body_payload, join_content
from warren.wire.properties import Properties, encode

MOST_SECONDS: Final = 20.0
"""Seconds after which a request returns, even if messages are left; the next one continues."""
MOST_FAILURES: Final = 100
"""Most failures that a response lists. After as many, the request returns."""


@dataclass
class Outcome:
    """Result of an action on several messages.

    :ivar scanned: number of messages that were looked at.
    :ivar matched: number of those that the selection names.
    :ivar done: number of those that were deleted or moved.
    :ivar gone: number of selected ids whose messages are not ready in the queue any more.
    :ivar failed: messages that were not moved: id and reason.
    :ivar position: position of the last message that was looked at.
    :ivar is_finished: True if no selected message is left.
    """

    scanned: int = 0
    matched: int = 0
    done: int = 0
    gone: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    position: Position = BEFORE_ALL
    is_finished: bool = False

    def as_json(self, queue: Queue) -> dict[str, Json]:
        """Return the result as the API shows it."""
        following = (
            None if self.is_finished else str(MessageId.of(queue, *(max(each, 0) for each in self.position)))
        )
        return {
            "scanned": self.scanned,
            "matched": self.matched,
            "done": self.done,
            "gone": self.gone,
            "failed": [{"id": identity, "reason": reason} for identity, reason in self.failed],
            "finished": self.is_finished,
            "next": following,
        }


class Action:
    """Deletion of messages. Subclasses move them."""

    def __init__(self, call: Call, queue: Queue) -> None:
        self.call = call
        self.queue = queue
        self.principal = call.principal()
        self.place = -1
        """Index of the next message among those that were requeued (`queue_browser.place_of`)."""

    def apply(self, message: Message) -> bool:
        """Carry out the action on a message; return False if it is not ready in the queue any more.

        :param message: the message, or a copy of it, with its content.
        :raises MoveRefused: it stays in the queue.
        """
        return delete_message(self.queue, message, self.place)

    def move(self, message: Message, copy: Message, properties: Properties) -> bool:
        """Put a copy of a message where the copy is addressed to, and remove the message.

        Return False if the message is not ready in the queue any more.

        :raises MoveRefused: it stays in the queue.
        """
        return move_message(self.principal, self.queue, message, self.place, copy, properties)


class Move(Action):
    """Move of messages, unchanged, to an exchange with a routing key. Keys in CC and BCC do not count."""

    def __init__(self, call: Call, queue: Queue, exchange: bytes, key: bytes) -> None:
        super().__init__(call, queue)
        self.exchange = exchange
        self.key = key

    def apply(self, message: Message) -> bool:
        properties = decode_properties(message)
        if properties is None:
            raise MoveRefused("its headers are malformed")
        content = message.content
        if message.has_bcc:
            headers = {name: field for name, field in properties.headers.items() if name != "BCC"}
            body = body_payload(content)
            content = join_content(
                message.channel, encode({**properties, "headers": headers}, len(body)), body
            )
        copy = message.copy()
        copy.exchange, copy.routing_key, copy.content, copy.has_bcc = self.exchange, self.key, content, False
        return self.move(message, copy, properties)


class Replay(Action):
    """Publish of dead letters to the queues in which they died, and their removal.

    :param to_exchange: True to publish them to the exchange and the first key of their first publish instead.
    :param edit: changes of the one message that is replayed; None for none.
    """

    def __init__(self, call: Call, queue: Queue, to_exchange: bool, edit: LetterEdit | None) -> None:
        super().__init__(call, queue)
        self.to_exchange = to_exchange
        self.edit = edit

    def apply(self, message: Message) -> bool:
        properties = decode_properties(message)
        if properties is None:
            raise MoveRefused("its headers are malformed")
        letter = DeadLetter.of(properties)
        if letter is None:
            raise MoveRefused("it is no dead letter: no header says where it was published")
        try:
            content, changed = replayed_content(properties, body_payload(message.content), letter, self.edit)
        except ApiError as error:
            raise MoveRefused(str(error.reason)) from None
        by_exchange = self.to_exchange or not letter.queue
        exchange, key = (letter.exchange, letter.keys[0]) if by_exchange else ("", letter.queue)
        size = len(body_payload(content))
        if size > self.call.node.settings.max_message_size:
            raise MoveRefused(f"its body is larger than {self.call.node.settings.max_message_size} bytes")
        copy = Message(_short("exchange", exchange), _short("routing key", key), content, size, 1)
        copy.persistent = True
        priority = changed.get("priority", 0)
        assert isinstance(priority, int)
        copy.priority = priority
        return self.move(message, copy, changed)


def _short(what: str, name: str) -> bytes:
    """Return a name or a routing key from the headers of a message, which may have any length, as a short string.

    :param what: what it is, for the error text.
    :raises MoveRefused: if it is longer than AMQP allows.
    """
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > LONGEST_NAME:
        raise MoveRefused(f"the {what} in its headers is longer than {LONGEST_NAME} bytes")
    return encoded


async def perform(
    action: Action,
    selected: list[MessageId] | MessageFilter,
    after: Position,
    limit: int,
    rate: float | None,
    dry_run: bool,
) -> Outcome:
    """Carry out an action on selected messages, in the order of delivery; return after the changes are on disk.

    Those that arrive meanwhile are not concerned.

    :param selected: ids of messages, or a filter of all ready messages behind `after`.
    :param limit: most messages.
    :param rate: most messages a second; None for no limit.
    :param dry_run: True to count the selected messages only.
    """
    queue, outcome = action.queue, Outcome(position=after)
    started, end = time.monotonic(), int(queue.next_sequence)
    ids = iter(selected) if isinstance(selected, list) else None

    def step() -> Generator[None, None, bool]:
        """Look at the next messages; return False if there are none."""
        most = 1 if rate else STEP
        if ids is not None:
            wanted = [each for _, each in zip(range(most), ids, strict=False)]
            for identity in wanted:
                if outcome.matched >= limit:
                    return True
                yield from one(identity)
            return bool(wanted)
        assert isinstance(selected, MessageFilter)
        found = yield from ready_after(queue, outcome.position, STEP)
        before = outcome.done
        for message in found:
            if (
                outcome.matched >= limit
                or (rate and outcome.done > before)
                or len(outcome.failed) >= MOST_FAILURES
            ):
                return True
            outcome.position = position_of(queue, message)
            outcome.scanned += 1
            if message.sequence < end and selected.accepts(message):
                yield from apply(message)
            yield
        return bool(found)

    def one(identity: MessageId) -> Generator[None, None, None]:
        outcome.scanned += 1
        found: list[Message] = []
        if identity.names_message_of(queue) and identity.rank <= highest_priority(queue.ready):
            found = yield from ready_after(queue, (identity.rank, identity.sequence - 1), 1)
        if found and position_of(queue, found[0]) == (identity.rank, identity.sequence):
            yield from apply(found[0])
        else:
            outcome.gone += 1
        yield

    def apply(message: Message) -> Generator[None, None, None]:
        outcome.matched += 1
        if dry_run:
            return
        action.place = yield from place_of(queue, message)
        try:
            if queue.deleted or not action.apply(message):
                outcome.gone += 1
            else:
                outcome.done += 1
                removed.append(message)
        except MoveRefused as refused:
            identity = MessageId.of(queue, *position_of(queue, message))
            outcome.failed.append((str(identity), str(refused)))

    while not queue.deleted:
        removed: list[Message] = []
        due = time.monotonic() + (1 / rate if rate else 0.0)
        try:
            more = await run_in_slices(step())
        finally:
            # Also when the client has gone: what was removed must not be listed again.
            if removed and not queue.deleted:
                await asyncio.shield(_written(action, removed))
        if not more:
            outcome.is_finished = True
            break
        if outcome.matched >= limit or len(outcome.failed) >= MOST_FAILURES:
            break
        if time.monotonic() - started > MOST_SECONDS:
            break
        if removed and rate:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
    return outcome


async def _written(action: Action, removed: list[Message]) -> None:
    """Wait until removals are on disk. Then the log lists those messages no longer."""
    await action.call.synced()
    for message in removed:
        action.queue.ready.level(message.priority).delta.removal_written(message.sequence)
