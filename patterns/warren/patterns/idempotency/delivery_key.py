"""Idempotency key of a delivery, by which a duplicate is recognised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warren.patterns.stores import record_key
from warren.sdk import DeadLetter, Delivery


def idempotency_key(key: Callable[[Any], str] | None, message: Any, delivery: Delivery) -> str:
    """Return the store's key of a delivery: the result of `key` for the message, or else its message id; within its
    queue.

    :raises DeadLetter: there is neither.
    """
    own = delivery.message_id if key is None else key(message)
    if not own:
        raise DeadLetter(
            "once: the message has no message_id; publish it with one, or give Once a key function"
        )
    return record_key("once", delivery.queue, own)


__all__ = ["idempotency_key"]
