"""Idempotency key of a delivery, by which a duplicate is recognised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warren.patterns.message_keys import key_text
from warren.patterns.stores import record_key
from warren.sdk import DeadLetter, Delivery


def idempotency_key(key: Callable[[Any], str] | None, message: Any, delivery: Delivery) -> str:
    """Return the store's key of a delivery, by which duplicates of the message are recognised.

    It contains the queue and the result of the function `key` for the message, or without this function the message id.

    :raises DeadLetter: there is neither a function `key` nor a message id, or the function returns None or an empty text.
    """
    if key is not None:
        own = key_text(key(message), "once", "key function's result")
    elif delivery.message_id:
        own = delivery.message_id
    else:
        raise DeadLetter(
            "once: the message has no message_id; publish it with one, or give Once a key function"
        )
    return record_key("once", delivery.queue, own)


__all__ = ["idempotency_key"]
