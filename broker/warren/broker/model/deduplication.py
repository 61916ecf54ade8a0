"""Deduplication by a window: a message whose key one of the last ones had goes nowhere.

On an exchange or a queue: what comes with the header x-deduplication-header is compared with the keys of the last
x-cache-size messages, or of those of the last x-cache-ttl milliseconds. A queue that no client can name keeps the keys, one
small message each: its length and its TTL are the window's, and it is stored as any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from warren.broker.model.argument_checks import (
    InvalidValue,
    boolean,
    duration_ms,
    non_negative,
    positive,
    string,
)
from warren.broker.model.exchange.headers import comparison_key
from warren.broker.model.message import Message
from warren.broker.model.message_codec import fill_message
from warren.wire.content import body_payload, header_payload, join_content, make_header
from warren.wire.properties import decode

if TYPE_CHECKING:
    from warren.broker.model.queue.queue import Queue
    from warren.wire.field_tables import Field

HEADER: Final = "x-deduplication-header"
TTL: Final = "x-cache-ttl"
ARGUMENTS: Final = ("x-message-deduplication", "x-cache-size", TTL, HEADER)
DEFAULT_SIZE: Final = 128
LARGEST: Final = 1_000_000


@dataclass(frozen=True)
class DeduplicationRule:
    """What is compared, and how far back.

    :param header: the header whose value is the key; messages without it are never duplicates.
    :param size: how many keys are remembered.
    :param ttl: for how many milliseconds; -1 is for as long as there is room.
    """

    header: str = HEADER
    size: int = DEFAULT_SIZE
    ttl: int = -1


def deduplication_rule(fields: dict[str, Field], *, always: bool = False) -> DeduplicationRule | None:
    """What the arguments of a queue or an exchange say; None if it does not deduplicate.

    :param always: as if x-message-deduplication were there.
    :raises InvalidArgument: for a value that is none.
    """
    name = ARGUMENTS[0]
    try:
        wanted = boolean(fields.get(name)) or always
        name = "x-cache-size"
        size = positive(fields.get(name))
        if size > LARGEST:
            raise InvalidValue(f"{{max_value_exceeded,{size}}}")
        name = TTL
        ttl = duration_ms(fields.get(name))
        name = HEADER
        header = string(fields.get(name))
    except InvalidValue as reason:
        raise InvalidArgument(name, str(reason)) from None
    if not wanted:
        return None
    found = HEADER if header is None else header.decode("utf-8", "surrogateescape")
    return DeduplicationRule(found, DEFAULT_SIZE if size < 0 else size, ttl)


class InvalidArgument(Exception):
    """Which argument, and why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


class DeduplicationWindow:
    """The keys of the last messages."""

    def __init__(self, rule: DeduplicationRule, queue: Queue) -> None:
        self.rule = rule
        self.queue = queue
        """Keeps them; its messages' bodies are the keys."""
        self._keys: dict[bytes, bool] = {}

    def key_of(self, headers: dict[str, Field]) -> bytes | None:
        """What a message is compared by; None if nothing."""
        field = headers.get(self.rule.header)
        return None if field is None else repr(comparison_key(field)).encode()

    def contains(self, headers: dict[str, Field]) -> bool:
        """Whether a message with these headers is a duplicate."""
        key = self.key_of(headers)
        return key is not None and key in self._keys

    def make_entry(self, message: Message) -> Message | None:
        """What remembers a message, for its queue to take after the message is where it belongs; None if nothing does."""
        headers = decode(header_payload(message.content), "x-death").headers
        key = self.key_of(headers)
        if key is None or key in self._keys:
            return None
        self._keys[key] = True
        entry = Message(b"", b"", join_content(0, make_header(len(key), b"", 0), key), len(key), 0)
        entry.persistent = message.persistent
        try:
            entry.ttl = non_negative(headers.get(TTL))
        except InvalidValue:
            entry.ttl = -1
        return entry

    def remove(self, entry: Message) -> None:
        """It has left the window."""
        self._keys.pop(body_payload(entry.content), None)

    def restore(self, payloads: Iterable[bytes]) -> None:
        """What the log has kept, after a restart."""
        for payload in payloads:
            entry = Message(b"", b"", b"", 0, 0)
            fill_message(entry, payload)
            self._keys[body_payload(entry.content)] = True


DUPLICATE: Final[list[Queue]] = []
"""Where a message goes that has been there: nowhere, and that is no reason to return it. Not to be changed."""


def drop_duplicates(
    queues: list[Queue], passed: list[Queue], headers: dict[str, Field], seen: bool
) -> list[Queue]:
    """Where a message goes of the queues that it is routed to, and which queues remember it.

    :param passed: those that keep the keys of the exchanges on the way.
    :param seen: one of the exchanges has had it.
    """
    found: list[Queue] = []
    keepers = passed
    for queue in queues:
        window = queue.window
        if window is None:
            found.append(queue)
        elif window.contains(headers):
            seen = True
        else:
            found.append(queue)
            keepers.append(window.queue)
    if not found:
        return DUPLICATE if seen else found
    return found + keepers


def drop_late_duplicates(queues: list[Queue], message: Message) -> list[Queue]:
    """As `unique` has found; but another message with the same key may have come since, in the same transaction."""
    headers = decode(header_payload(message.content), "x-death").headers
    own = {queue.window.queue: queue for queue in queues if queue.window is not None}
    left = dict.fromkeys(queues)
    for keeper in queues:
        if keeper.stored_window is not None and keeper.stored_window.contains(headers):
            if keeper not in own:
                return []
            del left[own[keeper]], left[keeper]
    return list(left)
