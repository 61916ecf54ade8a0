"""Wildcards in names that an operator or an application gives: an asterisk stands for any text."""

from __future__ import annotations


def matches(text: str, pattern: str) -> bool:
    """Return whether the whole text matches the pattern: each `*` stands for any text, all other characters for themselves.

    The time grows with the product of both lengths at most, whatever the pattern.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if not text.startswith(first):
        return False
    position = len(first)
    for part in middle:
        found = text.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return len(text) - position >= len(last) and text.endswith(last)


__all__ = ["matches"]
