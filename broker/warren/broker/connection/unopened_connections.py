"""Connections that are not open yet: the oldest first, by client, and the client that has the most of them."""

from __future__ import annotations

from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class UnopenedConnections(Generic[_Item]):
    """Connections that are not open yet, by the network of the client.

    Every operation takes the same time, however many connections and networks there are.
    """

    def __init__(self) -> None:
        self._networks: dict[_Item, str] = {}
        self._by_network: dict[str, dict[_Item, bool]] = {}
        """Connections of each network, the oldest first."""
        self._by_count: list[dict[str, bool]] = [{}]
        """Networks by the number of their connections; the last item is never empty, except for that of 0."""

    def __len__(self) -> int:
        return len(self._networks)

    def add(self, item: _Item, network: str) -> None:
        """Add a connection, as the newest of its network."""
        self._networks[item] = network
        items = self._by_network.setdefault(network, {})
        items[item] = True
        self._change_count(network, len(items) - 1, len(items))

    def discard(self, item: _Item) -> None:
        """Remove a connection if it is there."""
        network = self._networks.pop(item, None)
        if network is None:
            return
        items = self._by_network[network]
        del items[item]
        self._change_count(network, len(items) + 1, len(items))
        if not items:
            del self._by_network[network]

    def count(self, network: str) -> int:
        """Return the number of connections of a network."""
        return len(self._by_network.get(network, ()))

    def oldest_of(self, network: str) -> _Item | None:
        """Return the oldest connection of a network; None if it has none."""
        return next(iter(self._by_network.get(network, ())), None)

    def oldest_of_largest(self) -> _Item | None:
        """Return the oldest connection of the network that has the most; None if there are no connections."""
        network = next(iter(self._by_count[-1]), None)
        return None if network is None else self.oldest_of(network)

    def _change_count(self, network: str, before: int, after: int) -> None:
        levels = self._by_count
        if before:
            del levels[before][network]
        if after:
            if after == len(levels):
                levels.append({})
            levels[after][network] = True
        while len(levels) > 1 and not levels[-1]:
            levels.pop()
