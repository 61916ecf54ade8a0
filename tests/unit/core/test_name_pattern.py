"""Regular expressions over names: they find what Python's find, in linear time, and refuse what the engine lacks."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warren.core.name_pattern import LONGEST_PATTERN, MOST_LOOKAHEADS, InvalidPattern, NamePattern, quote

LETTERS = st.sampled_from(["a", "b", r"\.", ".", "[ab]", "[^a]", "[)(|]", r"\(", "x", r"\x28"])


def repeated(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = inner.map(lambda text: f"({text})") | inner.map(lambda text: f"(?:{text})")
    return (
        st.tuples(inner, inner).map("".join)
        | st.tuples(groups, st.sampled_from(["", "*", "+", "?", "{2}"])).map("".join)
        | st.tuples(inner, inner).map("|".join).map(lambda text: f"(?:{text})")
    )


EXPRESSIONS = st.recursive(LETTERS, repeated, max_leaves=8)
NAMES = st.text(alphabet="abx.()|", max_size=12)


@given(EXPRESSIONS, st.booleans(), st.booleans(), NAMES)
def test_it_finds_what_the_standard_library_finds(expression: str, start: bool, end: bool, name: str) -> None:
    text = "^" * start + expression + "$" * end
    assert NamePattern(text).found_in(name) == bool(re.search(text, name))


@given(st.lists(st.tuples(st.sampled_from(["(?=", "(?!"]), EXPRESSIONS), max_size=3), EXPRESSIONS, NAMES)
@example([("(?!", r"amq\.")], "", "amq.topic")
@example([("(?!", "[)a]b")], "a", "a")
def test_lookaheads_at_the_start_hold_as_in_the_standard_library(
    lookaheads: list[tuple[str, str]], rest: str, name: str
) -> None:
    text = "^" + "".join(f"{sign}{inner})" for sign, inner in lookaheads) + rest
    assert NamePattern(text).found_in(name) == bool(re.search(text, name))


@pytest.mark.parametrize(
    ("text", "found", "missed"),
    [
        (r"^(?!amq\.)", "orders", "amq.orders"),
        (r"^(?!amq\.|celery).*", "orders", "celery"),
        (r"(?i)^(?!AMQ)o", "Orders", "amq.o"),
        (r"^(?!\Q(\E)", "a", "(a"),
        (r"^(?![[:digit:])])", "a", ")"),
        ("ö", "größe", "groesse"),
        ("", "", None),
        ("^$", "", "a"),
    ],
)
def test_patterns_as_users_write_them(text: str, found: str, missed: str | None) -> None:
    assert NamePattern(text).found_in(found)
    assert NamePattern(text).found_in(found.encode())
    assert missed is None or not NamePattern(text).found_in(missed)


def test_the_case_of_letters_can_be_ignored() -> None:
    assert NamePattern("ORDERS", ignore_case=True).found_in("my.orders")
    assert not NamePattern("ORDERS").found_in("my.orders")
    assert NamePattern("^(?!AMQ)", ignore_case=True).found_in("orders")
    assert not NamePattern("^(?!AMQ)", ignore_case=True).found_in("amq.orders")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r"(a)\1", "back references are not supported"),
        (r"(?<n>a)\k<n>", "back references are not supported"),
        ("a(?!b)", "a lookahead may only stand right after a ^ at the start"),
        ("^(?!a)b|c", "a lookahead may only stand right after a ^ at the start"),
        ("^(?!a", "a lookahead may only stand right after a ^ at the start"),
        ("^" + "(?!a)" * (MOST_LOOKAHEADS + 1), "a lookahead may only stand right after a ^ at the start"),
        ("(?m)^(?!a)", "a lookahead may only stand right after a ^ at the start"),
        ("(?<!a)b", "a lookbehind nowhere"),
        ("(", "missing )"),
        ("[", "missing ]"),
        ("*", "no argument for repetition operator: *"),
        ("a{1001}", "invalid repetition size"),
        ("((a{100}){100}){100}", "invalid repetition size"),
        ("a" * (LONGEST_PATTERN + 1), f"longer than {LONGEST_PATTERN} bytes"),
        (r"\pL[\PN\p{Lu}]", "more than 2 classes such as"),
        ("\ud800", "half a surrogate pair"),
    ],
)
def test_what_is_not_supported_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidPattern, match=re.escape(reason)):
        NamePattern(text)


@pytest.mark.parametrize(
    "text",
    [
        r"^(a+)+$",
        r"^([a-z]+\.?)+$",
        r"(x+x+)+y",
        r"^(a|aa)+$",
        r"(a?){200}a{200}$",
        "^(?!" + r"(a+)+$" + ")b",
    ],
)
def test_a_search_ends_that_would_take_a_backtracking_engine_for_ever(text: str) -> None:
    assert not NamePattern(text).found_in("a" * 199 + "!")


@pytest.mark.parametrize("text", ["^(?!" + "[" * 16_000, "^" + "(?!" * 5_000, "^(?!" + r"\Q" * 8_000])
def test_an_odd_beginning_is_read_in_linear_time(text: str) -> None:
    with pytest.raises(InvalidPattern):
        NamePattern(text)


@given(st.text(max_size=20))
def test_a_quoted_text_finds_itself_only(text: str) -> None:
    assert NamePattern(f"^{quote(text)}$").found_in(text)
    assert not NamePattern(f"^{quote(text)}$").found_in(text + "x")
