"""Removal of the bindings from and to deleted queues and exchanges, in slices."""

from __future__ import annotations

import time
from typing import Final

from warren.broker.model.exchange.exchange import Binding, Exchange
from warren.broker.model.queue.queue import Queue

BINDINGS: Final = 32
"""Bindings that are removed before the time is checked."""


class BindingRemoval:
    """Removal of the bindings of one deleted queue or exchange, and of the auto-delete exchanges that go with it.

    A queue may have tens of thousands of bindings. Nothing is routed by them, and no one can list them, from the moment
    in which they are added here; `step`, which is bulk work, frees them.
    """

    def __init__(self) -> None:
        self._incoming: list[tuple[Exchange, Queue | Exchange, list[tuple[bytes, bytes]]]] = []
        """Source exchanges with a deleted destination, and the keys of the bindings between them."""
        self._outgoing: list[tuple[Exchange, list[Binding]]] = []
        """Deleted exchanges with the bindings from them."""

    def detach(self, destination: Queue | Exchange) -> list[Exchange]:
        """Add the bindings to a deleted queue or exchange. Return the exchanges that they come from.

        Work on each binding is left to `step`.
        """
        sources = destination.incoming_bindings
        destination.incoming_bindings = {}
        is_queue = isinstance(destination, Queue)
        for source, keys in sources.items():
            source.stop_routing_to(destination, is_queue, len(keys))
            self._incoming.append((source, destination, list(keys)))
        return list(sources)

    def add_outgoing(self, source: Exchange) -> None:
        """Add the bindings from a deleted exchange."""
        self._outgoing.append((source, list(source.bindings.values())))

    def step(self, end: float) -> bool:
        """Remove bindings until a time; return True if none is left.

        :param end: the time by `time.monotonic()`.
        """
        left = BINDINGS
        while self._incoming:
            source, destination, keys = self._incoming[-1]
            is_queue = isinstance(destination, Queue)
            while keys:
                source.remove_dead_binding(destination, is_queue, *keys.pop())
                left -= 1
                if not left:
                    if time.monotonic() >= end:
                        return False
                    left = BINDINGS
            self._incoming.pop()
        while self._outgoing:
            source, bindings = self._outgoing[-1]
            while bindings:
                bindings.pop().destination.incoming_bindings.pop(source, None)
                left -= 1
                if not left:
                    if time.monotonic() >= end:
                        return False
                    left = BINDINGS
            self._outgoing.pop()
        return True


__all__ = ["BindingRemoval"]
