"""`x-recent-history`: a fanout exchange that delivers its last messages to a newly bound queue.

https://github.com/rabbitmq/rabbitmq-server/tree/main/deps/rabbitmq_recent_history_exchange
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from warren.broker.model.argument_checks import argument_fields, format_value
from warren.broker.model.exchange.binding_selector import precondition_failed

if TYPE_CHECKING:
    from warren.broker.model.message import Message
    from warren.wire.field_tables import Field

DEFAULT_LENGTH: Final = 20
MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes of message contents that one exchange keeps at most, whatever the configured length of its history."""


class RecentHistory:
    """Last messages that were published to one `x-recent-history` exchange, kept in memory for newly bound queues.

    :param arguments: the encoded arguments of the exchange.
    """

    def __init__(self, arguments: bytes) -> None:
        self._length = history_length(argument_fields(arguments).get("x-recent-history-length"))
        self._messages: deque[Message] = deque()
        self._bytes = 0

    def remember(self, message: Message, headers: dict[str, Field]) -> None:
        """Add a published message, unless its header x-recent-history-no-store is true.

        If there are then more messages, or more bytes of contents, than the exchange keeps, drop the oldest.

        :param headers: the message's decoded headers, by name.
        """
        forbidden = headers.get("x-recent-history-no-store")
        if forbidden is not None and forbidden.value is True:
            return
        self._messages.append(message.copy())
        self._bytes += len(message.content)
        while len(self._messages) > self._length or self._bytes > MOST_BYTES:
            self._bytes -= len(self._messages.popleft().content)

    def messages(self) -> list[Message]:
        """Return copies of the kept messages, the oldest first."""
        return [message.copy() for message in self._messages]


def history_length(field: Field | None) -> int:
    """Return the number of messages that an exchange keeps: its argument x-recent-history-length, or the default.

    :raises AmqpError: 406 if it is no integer above 0.
    """
    if field is None:
        return DEFAULT_LENGTH
    if not field.is_integer or not isinstance(field.value, int) or field.value < 1:
        value = f'<<"{format_value(field)}">>' if field.kind == "S" else format_value(field)
        raise precondition_failed(
            f"Invalid argument {value}, 'x-recent-history-length' must be a positive integer"
        )
    return field.value
