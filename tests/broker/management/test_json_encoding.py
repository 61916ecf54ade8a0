"""Encoding and sorting in small steps, as replies of the control socket and exports need them."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.broker.management.json_encoding import ITEMS, PART, encode, encode_in_steps
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


@given(JSON, st.integers(0, 9))
def test_a_value_is_encoded_as_at_once(value: object, count: int) -> None:
    whole = {"result": {"columns": ["a"], "rows": [value] * count}, "other": value, "none": [], "empty": {}}
    for ascii_only in (False, True):
        parts, _ = finish(encode_in_steps(whole, ascii_only=ascii_only))
        assert b"".join(parts) == encode(whole, ascii_only=ascii_only)
        wanted = json.dumps(whole, separators=(",", ":"), ensure_ascii=ascii_only)
        assert b"".join(parts) == wanted.encode(errors="replace")


def test_a_name_that_is_no_utf_8_is_kept_in_ascii_only() -> None:
    name = b"caf\xe9".decode(errors="surrogateescape")

    assert encode([name]) == b'["caf?"]'
    assert json.loads(encode([name], ascii_only=True)) == [name]


def test_a_long_list_is_encoded_in_steps_and_parts() -> None:
    rows = [["name", number, {"x": [1, 2]}] for number in range(20_000)]
    parts, steps = finish(encode_in_steps({"result": {"columns": [], "rows": rows}}))
    assert json.loads(b"".join(parts))["result"]["rows"] == rows
    assert steps >= len(rows) // ITEMS
    assert len(parts) > 3
    assert max(len(part) for part in parts) < 2 * PART


@given(st.lists(st.tuples(st.integers(), st.binary())))
def test_items_are_sorted_as_at_once(items: list[tuple[int, bytes]]) -> None:
    found, _ = finish(sort_in_steps(items))
    assert found == sorted(items)


def test_many_items_are_sorted_in_steps() -> None:
    items = [(number * 7919 % 10_007, b"x") for number in range(8 * SORTED_AT_ONCE)]
    found, steps = finish(sort_in_steps(items))
    assert found == sorted(items)
    assert steps >= 8


@given(st.lists(st.tuples(st.integers(0, 3), st.integers())), st.booleans(), st.integers(1, 5))
def test_items_are_sorted_by_a_key_and_keep_their_order_otherwise(
    items: list[tuple[int, int]], reverse: bool, times: int
) -> None:
    many = items * (times * 100)
    found, _ = finish(sort_in_steps(many, key=lambda item: item[0], reverse=reverse))
    assert found == sorted(many, key=lambda item: item[0], reverse=reverse)


def test_very_many_items_are_merged_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.broker.management.time_slices.MERGED_AT_ONCE", 4 * SORTED_AT_ONCE)
    items = [(number * 7919 % 10_007, b"x") for number in range(8 * SORTED_AT_ONCE)]
    for reverse in (False, True):
        found, steps = finish(sort_in_steps(items, reverse=reverse))
        assert found == sorted(items, reverse=reverse)
        assert steps >= len(items)
