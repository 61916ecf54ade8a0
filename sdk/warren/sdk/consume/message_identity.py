"""Identity of messages: whether a delivery is one of a message that has been delivered before."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final, TypeAlias

from warren.wire import field_tables

Identity: TypeAlias = tuple[str, str, Mapping[str, Any], bytes, int]
"""Exchange, routing key, properties, encoded headers and hash of the body of a message."""
COUNTED_BY_BROKER: Final = frozenset({"x-delivery-count", "x-acquired-count"})
"""Headers that the broker changes with each delivery."""


def fingerprint(identity: Identity) -> Hashable:
    """Return a key that only equal messages share: all that their publisher sent is equal, and their message id is set. None
    for a message without an id, or with headers that cannot be read.
    """
    exchange, routing_key, properties, table, body = identity
    if not properties.get("message_id"):
        return None
    try:
        fields = field_tables.decode_fields(table) if table else {}
    except field_tables.TableError:
        return None
    headers = repr(sorted((name, field) for name, field in fields.items() if name not in COUNTED_BY_BROKER))
    return exchange, routing_key, tuple(sorted(properties.items())), headers, body


__all__ = ["Identity", "fingerprint"]
