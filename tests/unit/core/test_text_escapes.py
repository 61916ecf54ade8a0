"""Escapes of text from messages: harmless, unambiguous, and JSON that reads back."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.core.text_escapes import escape, escape_json, escape_lines, escape_value, json_text

ANY_TEXT = st.text(st.characters() | st.sampled_from("\\xutnrU01bad\ud83d\x1b\x9b\u202e\n\t\r\x7f"))
ESCAPE = re.compile(r"\\(?:\\|t|n|r|x([0-9a-f]{2})|u([0-9a-f]{4}))")
SHORT = {r"\\": "\\", r"\t": "\t", r"\n": "\n", r"\r": "\r"}


def unescaped(text: str) -> str:
    """Read the escapes of a value from the left to the right, as a person does."""
    return ESCAPE.sub(lambda found: SHORT.get(found[0]) or chr(int(found[1] or found[2], 16)), text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("order-42", "order-42"),
        ("größe → 😀 👩\u200d👩 e\u0301 日本", "größe → 😀 👩\u200d👩 e\u0301 日本"),
        ("a\tb\nc\rd", r"a\tb\nc\rd"),
        ("\x00\x1b[2J\x7f\x85\x9b", r"\x00\x1b[2J\x7f\x85\x9b"),
        ("\u202eevil\u2066\u061c\u200f", r"\u202eevil\u2066\u061c\u200f"),
        ("zero\u200bwidth\ufeff\xad", r"zero\u200bwidth\ufeff\xad"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\ud83d half", r"\ud83d half"),
        (r"^a\.b$ C:\data", r"^a\.b$ C:\data"),
        (r"\x1b", r"\\x1b"),
        ("\\\x1b", r"\\\x1b"),
        ("\\\\", "\\\\\\"),
    ],
)
def test_a_value_is_escaped(text: str, shown: str) -> None:
    assert escape_value(text) == shown


@given(ANY_TEXT)
def test_different_values_look_different(text: str) -> None:
    shown = escape_value(text)
    assert unescaped(shown) == text
    assert escape(shown) == shown


def test_a_line_keeps_its_backslashes_and_a_text_its_line_breaks() -> None:
    assert escape("can't read 'a\\nb'\x1b") == r"can't read 'a\nb'\x1b"
    assert escape_lines("one\n\ttwo\r\n\x1b") == "one\n\ttwo\\r\n\\x1b"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
)


@given(JSON_VALUES, st.booleans())
def test_json_reads_back_and_is_harmless(value: Any, ascii_only: bool) -> None:
    text = json_text(value, ascii_only=ascii_only)
    # Two lone surrogates beside each other are a pair for every reader of JSON.
    expected = json.loads(json.dumps(value))
    assert json.loads(text) == expected
    assert escape(text) == text
    assert not ascii_only or text.isascii()
    assert json.loads(escape_json(json.dumps(value, ensure_ascii=False), ascii_only=ascii_only)) == expected


def test_numbers_that_json_lacks_are_texts() -> None:
    value = {"a": [float("nan"), float("inf")], "b": {"c": (-float("inf"), 1.5)}, "d": 1e400}
    assert json.loads(json_text(value)) == {
        "a": ["NaN", "Infinity"],
        "b": {"c": ["-Infinity", 1.5]},
        "d": "Infinity",
    }


def test_json_layouts() -> None:
    assert json_text({"a": [1]}, compact=True) == '{"a":[1]}'
    assert json_text({"ä": "😀\x7f"}, indent=2) == '{\n  "ä": "😀\\u007f"\n}'
    assert json_text("😀", ascii_only=True) == '"\\ud83d\\ude00"'
