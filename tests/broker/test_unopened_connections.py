"""Bookkeeping of connections that are not open yet, compared with a plain list."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tiers import examples
from warren.broker.connection.unopened_connections import UnopenedConnections

STEPS = st.lists(st.tuples(st.sampled_from("aaabbcd"), st.integers(0, 9), st.booleans()), max_size=40)


@settings(max_examples=examples(1000), deadline=None)
@given(STEPS)
def test_the_oldest_connection_of_the_network_with_the_most_is_found(
    steps: list[tuple[str, int, bool]],
) -> None:
    unopened: UnopenedConnections[int] = UnopenedConnections()
    model: list[tuple[int, str]] = []
    for number, (network, place, adds) in enumerate(steps):
        if adds or place >= len(model):
            unopened.add(number, network)
            model.append((number, network))
        else:
            item, _ = model.pop(place)
            unopened.discard(item)
            unopened.discard(item)
        counts = Counter(network for _, network in model)
        assert len(unopened) == len(model)
        found = unopened.oldest_of_largest()
        if not model:
            assert found is None
            continue
        holders = [network for network, count in counts.items() if count == max(counts.values())]
        assert found in [next(item for item, each in model if each == network) for network in holders]
        for network, count in counts.items():
            assert unopened.count(network) == count
            assert unopened.oldest_of(network) == next(item for item, each in model if each == network)
