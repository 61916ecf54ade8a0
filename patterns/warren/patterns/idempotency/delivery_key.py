"""By what a delivery is recognised when it comes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warren.patterns.stores import record_key
from warren.sdk import DeadLetter, Delivery


def idempotency_key(key: Callable[[Any], str] | None, message: Any, delivery: Delivery) -> str:
    """The store's key of a delivery: what `key` says of the message, else its message id; of its queue alone.

    :raises DeadLetter: there is neither.
    """
    own = delivery.message_id if key is None else key(message)
    if not own:
        raise DeadLetter(
            "once: the message has no message_id; publish it with one, or give Once a key function"
        )
    return record_key("once", delivery.queue, own)


__all__ = ["idempotency_key"]
