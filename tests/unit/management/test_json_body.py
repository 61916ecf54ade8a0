"""JSON of requests: parsed as the standard library does, but what is no JSON is refused, and each step is small."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warren.broker.http_api.json_body import MOST_DEPTH, STEP, NotJson, TooManyValues, parse_in_steps

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def parsed(text: bytes, most: int = 100_000) -> tuple[Any, int]:
    """Return the value of a text, and the number of steps."""
    steps, work = 0, parse_in_steps(text, most)
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, steps
        steps += 1


@given(VALUES, st.booleans(), st.sampled_from([None, 2, "\t"]))
def test_what_is_json_is_parsed(value: Any, escaped: bool, indent: int | str | None) -> None:
    text = json.dumps(value, ensure_ascii=escaped, indent=indent)
    assert parsed(text.encode())[0] == value


@given(st.text(alphabet='[]{}:,"\\u0aDd8-+.eE1 \ntrufalsn', max_size=12))
@example('{"a":1,}')
@example("[1,]")
@example("[1 2]")
@example("01")
@example("1.")
@example("-")
@example('"\n"')
@example('{"a" 1}')
@example("[")
@example("")
@example("truefalse")
def test_it_takes_what_the_standard_library_takes(text: str) -> None:
    try:
        expected = json.loads(text)
        json.dumps(expected, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        with pytest.raises(NotJson):
            parsed(text.encode())
    else:
        assert parsed(text.encode())[0] == expected


@pytest.mark.parametrize(
    "text",
    [
        b"NaN",
        b"[Infinity]",
        b'{"a": -Infinity}',
        b"1e999",
        b"-1e999",
        b"1" * 5000,
        rb'"\ud800"',
        rb'{"\udc00": 1}',
        b'"\xff"',
        b"\xed\xa0\x80",
        '{"a": 1}'.encode("utf-16"),
        b"\xef\xbb\xbf{}",
        b"{'a': 1}",
        b"[1] // end",
    ],
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(NotJson):
        parsed(text)


def test_the_depth_is_limited() -> None:
    deepest = b"[" * MOST_DEPTH + b"[]" + b"]" * MOST_DEPTH
    assert parsed(deepest)[0]
    with pytest.raises(NotJson, match="nested deeper"):
        parsed(b"[" + deepest + b"]")
    with pytest.raises(NotJson, match="nested deeper"):
        parsed(b'{"a":' * 1_000_000)


def test_the_number_of_values_is_limited() -> None:
    assert parsed(b"[" + b"{}," * 98 + b"1]", 100)[0]
    with pytest.raises(TooManyValues, match="more than 100 values"):
        parsed(b"[" + b"{}," * 99 + b"1]", 100)


def test_each_step_parses_some_values_only() -> None:
    _, steps = parsed(b'{"a":[' + b'{"b":1},' * 5_000 + b"[]]}")
    assert steps >= 10_000 // STEP
