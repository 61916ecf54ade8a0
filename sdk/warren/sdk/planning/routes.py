"""Routing of declared topology: which messages would reach a queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from warren.sdk.topology.binding import Binding
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.queue import Queue


class Routes:
    """Predicts for a declared topology whether the broker would route a message to a queue.

    :param items: declared exchanges, queues and bindings.
    :param bindings: bindings that exist on the broker, in addition to the declared ones.
    """

    def __init__(self, items: Iterable[Declarable], bindings: Iterable[Binding] = ()) -> None:
        items = list(items)
        self.exchanges: Mapping[str, Exchange] = {
            each.name: each for each in items if isinstance(each, Exchange)
        }
        self.queues: Mapping[str, Queue] = {each.name: each for each in items if isinstance(each, Queue)}
        self._from: dict[str, list[Binding]] = {}
        for each in (*(item for item in items if isinstance(item, Binding)), *bindings):
            self._from.setdefault(each.source, []).append(each)

    def has_bindings(self, exchange: str) -> bool:
        """Return whether any queue or exchange is bound to this exchange."""
        return bool(self._from.get(exchange))

    def routes_key(self, exchange: str, key: str) -> bool:
        """Return whether a message with this routing key, published to this exchange, would reach a queue.

        Bindings of headers exchanges count as matching, because the headers of the message are unknown.
        """
        return self._routes_key(exchange, key, set())

    def routes_everything(self, exchange: str) -> bool:
        """Return whether every message that is published to this exchange would reach a queue, whatever its key and
        headers."""
        kind = self.exchanges[exchange].type if exchange in self.exchanges else "fanout"
        for each in self._from.get(exchange, ()):
            catches = {
                "fanout": True,
                "topic": each.key == "#",
                "headers": not {name for name in each.arguments if not name.startswith("x-")},
            }
            if catches.get(kind, False) and (
                not each.to_exchange or self.routes_everything(each.destination)
            ):
                return True
        return False

    def _routes_key(self, exchange: str, key: str, seen: set[str]) -> bool:
        if not exchange:
            return key in self.queues
        if exchange in seen:
            return False
        seen.add(exchange)
        kind = self.exchanges[exchange].type if exchange in self.exchanges else "headers"
        for each in self._from.get(exchange, ()):
            if not _matches(kind, each.key, key):
                continue
            if not each.to_exchange or self._routes_key(each.destination, key, seen):
                return True
        alternate = self.exchanges[exchange].alternate_exchange if exchange in self.exchanges else None
        return alternate is not None and self._routes_key(alternate, key, seen)


def _matches(kind: str, pattern: str, key: str) -> bool:
    if kind == "direct":
        return pattern == key
    if kind == "topic":
        return _matches_words(pattern.split("."), key.split("."))
    return True


def _matches_words(pattern: list[str], words: list[str]) -> bool:
    """Return whether the words of a routing key match a topic pattern: `*` is one word, `#` any number of them.

    (AMQP 0-9-1 section 3.1.3.3)
    """
    reachable = {0}
    for word in pattern:
        if word == "#":
            reachable = set(range(min(reachable), len(words) + 1)) if reachable else set()
        else:
            reachable = {at + 1 for at in reachable if at < len(words) and word in ("*", words[at])}
    return len(words) in reachable
