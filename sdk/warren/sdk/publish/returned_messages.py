"""Returned messages (`basic.return`): decoding into the error for their publisher."""

from __future__ import annotations

from warren.sdk.consume.delivery import RETURN_TOKEN, Delivery
from warren.sdk.errors import Unroutable
from warren.wire.delivery_scanner import decode_content_header, decode_return


def returned_message(method: bytes, header: bytes, body: bytes) -> tuple[Unroutable, int | None]:
    """Return the error for a returned message, and the number in its header
    `warren-token`, or None without that header.

    The number distinguishes publishes that have the same message id.

    :param method: payload of the `basic.return` frame; `header` is that of the content header frame.
    :raises StreamError: if the frames are truncated.
    """
    back, (properties, table) = decode_return(method), decode_content_header(header)
    delivery = Delivery(body, back.exchange, back.routing_key, "", False, None, properties, table=table)
    headers = dict(delivery.readable_headers)
    token = headers.pop(RETURN_TOKEN, None)
    error = Unroutable(
        reply_code=back.reply_code,
        reply_text=back.reply_text,
        exchange=back.exchange,
        routing_key=back.routing_key,
        properties={**properties, "headers": headers},
        body=body,
    )
    return error, token if isinstance(token, int) else None
