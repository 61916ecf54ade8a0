"""Wildcards in selections and routes: only an asterisk stands for other text, and data is never a pattern."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from warren.patterns.wildcards import matches

TEXTS = st.text(alphabet="ab*?[]!\n", max_size=8)


@given(TEXTS, TEXTS)
def test_an_asterisk_is_the_only_wildcard(text: str, pattern: str) -> None:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    assert matches(text, pattern) == bool(re.fullmatch(expression, text, re.DOTALL))


@given(TEXTS)
def test_a_text_matches_itself(text: str) -> None:
    assert matches(text, text)
