"""Message interceptor that adds a timestamp to published messages.

https://www.rabbitmq.com/docs/message-interceptors
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.wire import field_tables
from warren.wire.content import body_payload, header_payload, join_content
from warren.wire.properties import decode, encode

if TYPE_CHECKING:
    from warren.broker.model.message import Message

TIMESTAMPS: Final = ("off", "missing", "always")
"""Values of the setting `timestamps`: to which published messages the broker adds a timestamp."""
HEADER: Final = "timestamp_in_ms"


def add_timestamp(message: Message, now: float, mode: str) -> bytes:
    """Return a message's content with the property `timestamp` in seconds and the header `timestamp_in_ms`.

    :param now: Unix time in seconds.
    :param mode: `always` overwrites values that the publisher has set, `missing` keeps them.
    """
    properties = decode(header_payload(message.content))
    headers = dict(properties.headers)
    if mode == "always" or "timestamp" not in properties:
        properties["timestamp"] = int(now)
    if mode == "always" or HEADER not in headers:
        headers[HEADER] = field_tables.long_field(int(now * 1000 + 0.001))
    properties["headers"] = headers
    body = body_payload(message.content)
    return join_content(message.channel, encode(properties, len(body)), body)
