r"""Regular expressions over names that somebody else gives, matched in time linear in the length of the name.

RabbitMQ's expressions are those of PCRE, which gives up after a number of steps; Python's `re` would not, so that
`^(a+)+$` and one name keep it busy for ever. The engine is RE2 (https://github.com/google/re2/wiki/Syntax). It lacks back
references and look-around assertions; such a pattern is refused. Those that RabbitMQ's documentation recommends work:
lookaheads right after a `^` at the start, as in `^(?!amq\.)`.

An expression is searched for in the bytes of a name. `$` matches at the end only, not before a final newline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import re2

LONGEST_PATTERN: Final = 16_384
"""Bytes that a regular expression may have."""
MOST_PROPERTIES: Final = 2
"""Classes by a Unicode property, such as `\\pL`, that a regular expression may have: RE2 takes up to 9 ms to compile one."""
MOST_LOOKAHEADS: Final = 16
"""Lookaheads that a regular expression may have: each is searched for by itself."""
MEMORY: Final = 256 * 1024
"""Bytes that a compiled expression and its search may use. They bound the time of a search, too: a name of 255 bytes takes
10 ms at the worst, and a microsecond as a rule."""
_FLAGS: Final = re.compile(rb"\(\?[is]+\)")
_REASONS: Final = (
    (
        re.compile(r"\(\?<?[=!]"),
        "a lookahead may only stand right after a ^ at the start, a lookbehind nowhere",
    ),
    (re.compile(r"invalid escape sequence: \\[1-9gk]"), "back references are not supported"),
    (re.compile(r"pattern too large"), "it is too large"),
)
"""Reasons for refusing unsupported syntax, by a part of RE2's error."""


class InvalidPattern(ValueError):
    """Refusal of a text that is no regular expression, or that cannot be matched in linear time. The text is the reason."""


class NamePattern:
    r"""A regular expression that is searched for in names.

    :param text: the expression, such as `^orders\.`; an empty one is found in every name.
    :param ignore_case: True if the case of letters does not matter.
    :raises InvalidPattern: if it is invalid, longer than `LONGEST_PATTERN` bytes, has more than `MOST_PROPERTIES` classes by
        a property, or is not supported.
    """

    __slots__ = ("_excluded", "_expression", "_required")

    def __init__(self, text: str, *, ignore_case: bool = False) -> None:
        try:
            data = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise InvalidPattern("it contains half a surrogate pair") from None
        if len(data) > LONGEST_PATTERN:
            raise InvalidPattern(f"it is longer than {LONGEST_PATTERN} bytes")
        if data.lower().count(b"\\p") > MOST_PROPERTIES:
            raise InvalidPattern(f"it has more than {MOST_PROPERTIES} classes such as \\pL")
        required, excluded, rest = _split_lookaheads(data)
        self._expression = _compile(rest, ignore_case)
        self._required = [_compile(each, ignore_case) for each in required]
        self._excluded = [_compile(each, ignore_case) for each in excluded]

    def found_in(self, name: bytes | str) -> bool:
        """Return True if the expression matches some part of a name.

        :param name: the name; a text stands for its bytes in UTF-8.
        """
        if isinstance(name, str):
            name = name.encode("utf-8", "surrogatepass")
        if self._expression.search(name) is None:
            return False
        return all(each.search(name) is not None for each in self._required) and not any(
            each.search(name) is not None for each in self._excluded
        )


def quote(text: str) -> str:
    """Return the regular expression that matches a text itself."""
    return re2.escape(text)  # type: ignore[no-any-return]


def _compile(pattern: bytes, ignore_case: bool) -> re2._Regexp:
    try:
        return re2.compile(pattern, _options(ignore_case))
    except re2.error as error:
        found = error.args[0].decode(errors="replace") if error.args else "unknown error"
        for sign, reason in _REASONS:
            if sign.search(found):
                raise InvalidPattern(f"{reason} ({found})") from None
        raise InvalidPattern(found) from None


def _options(ignore_case: bool) -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes, as a name may contain any
    options.max_mem = MEMORY
    options.log_errors = False
    options.never_capture = True
    options.case_sensitive = not ignore_case
    return options


def _split_lookaheads(pattern: bytes) -> tuple[list[bytes], list[bytes], bytes]:
    """Take the lookaheads out of an expression in which they stand right after a `^` at the start.

    All of them and the rest are matched at the start of the name, so that each can be searched for by itself.

    :return: expressions that must be found, expressions that must not, and the rest.
    """
    flags = _FLAGS.match(pattern)
    head = (flags[0] if flags is not None else b"") + b"^"
    if not pattern.startswith(head):
        return [], [], pattern
    at = len(head)
    required: list[bytes] = []
    excluded: list[bytes] = []
    while pattern.startswith((b"(?=", b"(?!"), at):
        end = _group_end(pattern, at)
        if end is None or len(required) + len(excluded) == MOST_LOOKAHEADS:
            return [], [], pattern
        assertions = required if pattern.startswith(b"(?=", at) else excluded
        assertions.append(head + b"(?:" + pattern[at + 3 : end - 1] + b")")
        at = end
    rest = head + pattern[at:]
    if (not required and not excluded) or _has_outer_alternative(pattern, at):
        return [], [], pattern
    return required, excluded, rest


def _group_end(pattern: bytes, start: int) -> int | None:
    """Return the position after the group that begins at a position; None if it is not closed."""
    depth = 0
    for at, sign in _signs(pattern, start):
        depth += (sign == b"(") - (sign == b")")
        if depth == 0:
            return at + 1
    return None


def _has_outer_alternative(pattern: bytes, start: int) -> bool:
    """Return True if a `|` after a position stands outside of all groups: assertions are only for what is before it."""
    depth = 0
    for _, sign in _signs(pattern, start):
        depth += (sign == b"(") - (sign == b")")
        if sign == b"|" and depth == 0:
            return True
    return False


_SIGN: Final = re.compile(
    rb"\\Q.*?(?:\\E|$)|\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*(?:\]|\Z)|([(|)])", re.DOTALL
)
"""Quoted texts, escaped bytes and classes, which are literals; else a parenthesis or a `|`, which is the group."""


def _signs(pattern: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield the parentheses and `|` after a position that are no literals, each with its position."""
    for found in _SIGN.finditer(pattern, start):
        if found[1] is not None:
            yield found.start(), found[1]
