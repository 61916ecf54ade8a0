"""`Declarable` (exchange, queue or binding): identity, label, order of declaration, implied dead letter topology."""

from __future__ import annotations

from collections.abc import Iterable

from warren.sdk.topology.binding import Binding
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.queue import DEAD_LETTER_EXCHANGE, Queue

Declarable = Exchange | Queue | Binding
"""Item of a topology, which an App can declare."""


def identity(item: Declarable) -> object:
    """Return a key that is equal for two values that declare the same exchange, queue or binding."""
    match item:
        case Exchange():
            return ("exchange", item.name)
        case Queue():
            return ("queue", item.name)
        case Binding():
            return (
                "binding",
                item.source,
                item.destination,
                item.key,
                item.to_exchange,
                repr(item.arguments),
            )


def declaration_order(item: Declarable) -> int:
    """Return the sort key of an item: 0 for exchanges, 1 for queues, 2 for bindings, which need both."""
    match item:
        case Exchange():
            return 0
        case Queue():
            return 1
        case Binding():
            return 2


def label(item: Declarable) -> str:
    """Return the item's kind and name for texts, such as `queue 'billing'`."""
    match item:
        case Exchange():
            return f"exchange {item.name!r}"
        case Queue():
            return f"queue {item.name!r}"
        case Binding():
            kind = "exchange" if item.to_exchange else "queue"
            return f"the binding of {kind} {item.destination!r} to exchange {item.source!r} with key {item.key!r}"


def with_implied_topology(items: Iterable[Declarable]) -> list[Declarable]:
    """Return the items, and the dead letter topology that their queues have by default.

    That is the exchange `warren.dead`, and for each queue that
    dead-letters to it a queue `<name>.dead` with its binding.
    """
    found: list[Declarable] = []
    for item in items:
        if isinstance(item, Queue) and (dead := item.dead_letter_queue) is not None:
            found.append(Exchange(DEAD_LETTER_EXCHANGE, type="direct"))
            found.append(dead)
            found.append(Binding(DEAD_LETTER_EXCHANGE, dead.name, item.dead_letter_key or ""))
        found.append(item)
    return found
