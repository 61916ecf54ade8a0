"""Encoding and sorting in small steps, as replies of the control socket and exports need them."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from warren.broker.management.json_encoding import ITEMS, encode_in_steps
from warren.broker.management.time_slices import SORTED_AT_ONCE, sort_in_steps

Result = TypeVar("Result")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def finish(work: Generator[None, None, Result]) -> tuple[Result, int]:
    """Return the value of a generator, and the number of its steps."""
    steps = 0
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value, steps
        steps += 1


@given(JSON, st.integers(0, 3 * ITEMS))
def test_a_value_is_encoded_as_at_once(value: object, count: int) -> None:
    whole = {"result": {"columns": ["a"], "rows": [value] * count}, "other": value}
    encoded, _ = finish(encode_in_steps(whole))
    assert encoded == json.dumps(whole).encode()


def test_a_long_list_is_encoded_in_steps() -> None:
    rows = [["name", number, {"x": [1, 2]}] for number in range(64 * ITEMS)]
    encoded, steps = finish(encode_in_steps({"result": {"columns": [], "rows": rows}}))
    assert json.loads(encoded)["result"]["rows"] == rows
    assert steps >= 64


@given(st.lists(st.tuples(st.integers(), st.binary())))
def test_items_are_sorted_as_at_once(items: list[tuple[int, bytes]]) -> None:
    found, _ = finish(sort_in_steps(items))
    assert found == sorted(items)


def test_many_items_are_sorted_in_steps() -> None:
    items = [(number * 7919 % 10_007, b"x") for number in range(8 * SORTED_AT_ONCE)]
    found, steps = finish(sort_in_steps(items))
    assert found == sorted(items)
    assert steps >= 8
