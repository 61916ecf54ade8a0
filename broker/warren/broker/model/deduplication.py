"""Deduplication: a message is dropped if one with the same key was accepted recently.

Exchanges and queues can deduplicate. The key of a message is its header x-deduplication-header. The recent keys are the
window: those of the last x-cache-size messages, or of the last x-cache-ttl milliseconds. An internal queue stores the
keys, each as a small message, and forgets old ones by its length limit and TTL. It is durable if the exchange or queue
is.
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
    """Settings of the deduplication by one exchange or queue.

    :param header: name of the header with the key; a message without it is never a duplicate.
    :param size: number of keys to remember.
    :param ttl: milliseconds for which a key is remembered; -1 is no limit.
    """

    header: str = HEADER
    size: int = DEFAULT_SIZE
    ttl: int = -1


def deduplication_rule(fields: dict[str, Field], *, always: bool = False) -> DeduplicationRule | None:
    """Return the deduplication settings in the arguments of a queue or an exchange; None if it does not deduplicate.

    :param fields: the decoded arguments, by name.
    :param always: True for an exchange type that deduplicates without the argument x-message-deduplication.
    :raises InvalidArgument: for an invalid value.
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
    """An argument of deduplication is invalid. The text is the reason.

    :param name: the name of the argument.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


class DeduplicationWindow:
    """Keys of the last messages that one exchange or queue accepted, by which it recognises duplicates."""

    def __init__(self, rule: DeduplicationRule, queue: Queue) -> None:
        self.rule = rule
        self.queue = queue
        """The internal queue that stores the keys as bodies of messages."""
        self._keys: dict[bytes, bool] = {}

    def key_of(self, headers: dict[str, Field]) -> bytes | None:
        """Return a message's deduplication key; None if its headers hold none."""
        field = headers.get(self.rule.header)
        return None if field is None else repr(comparison_key(field)).encode()

    def contains(self, headers: dict[str, Field]) -> bool:
        """Return True if a message with these headers is a duplicate: its key is one of those remembered."""
        key = self.key_of(headers)
        return key is not None and key in self._keys

    def make_entry(self, message: Message, queues: list[Queue]) -> Message | None:
        """Remember the key of an accepted message.

        Return a small message that holds the key. The caller publishes it to the internal queue that stores the keys,
        after it has enqueued `message`. Return None if `message` has no key or its key is remembered already.

        :param queues: the queues that the message enters. The key survives a restart if the message does in one of them.
        """
        headers = decode(header_payload(message.content), "x-death").headers
        key = self.key_of(headers)
        if key is None or key in self._keys:
            return None
        self._keys[key] = True
        entry = Message(b"", b"", join_content(0, make_header(len(key), b"", 0), key), len(key), 0)
        entry.persistent = message.persistent or any(queue.stores_all_messages for queue in queues)
        try:
            entry.ttl = non_negative(headers.get(TTL))
        except InvalidValue:
            entry.ttl = -1
        return entry

    def remove(self, entry: Message) -> None:
        """Forget the key that a message of the internal queue stores, because this message has expired or was dropped.

        The expiry and the length limit of the internal queue are the limits of the deduplication.
        """
        self._keys.pop(body_payload(entry.content), None)

    def restore(self, payloads: Iterable[bytes]) -> None:
        """Remember the keys that the broker's log has kept, after a restart.

        :param payloads: the messages of the internal queue that stores the keys, as they are encoded in the log.
        """
        for payload in payloads:
            entry = Message(b"", b"", b"", 0, 0)
            fill_message(entry, payload)
            self._keys[body_payload(entry.content)] = True


DUPLICATE: Final[list[Queue]] = []
"""Routes of a message that was dropped as a duplicate: an empty list, which must not be changed.

Callers recognise it by identity, because a duplicate is not returned to its publisher as unroutable.
"""


def drop_duplicates(
    queues: list[Queue], passed: list[Queue], headers: dict[str, Field], seen: bool
) -> list[Queue]:
    """Remove from a message's route the queues that have recently accepted a message with the same deduplication key.

    Return the other queues, followed by the internal queues that will store the message's key. Return `DUPLICATE`, an
    empty list, if no queue is left because an exchange or a queue has recognised the message as a duplicate.

    :param queues: the queues that the message is routed to.
    :param passed: the internal queues in which the deduplicating exchanges that routed the message store their keys.
        The function may extend this list.
    :param headers: the message's headers.
    :param seen: True if an exchange has recognised the message as a duplicate and has not routed it further.
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
    """Remove from a message's route the queues for which it has become a duplicate since; return the others.

    Messages of a transaction are routed when they are published, and enqueued at the commit: an earlier message of the
    same transaction may have the same key. The result is empty if an exchange recognises the message as a duplicate.

    :param queues: the result of `drop_duplicates`, which includes internal queues for the message's key.
    """
    headers = decode(header_payload(message.content), "x-death").headers
    own = {queue.window.queue: queue for queue in queues if queue.window is not None}
    left = dict.fromkeys(queues)
    for keeper in queues:
        if keeper.stored_window is not None and keeper.stored_window.contains(headers):
            if keeper not in own:
                return []
            del left[own[keeper]], left[keeper]
    return list(left)
