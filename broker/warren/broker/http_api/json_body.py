"""JSON of requests, parsed in steps, with limits on its depth and the number of its values.

The standard library parses a body at once, which takes a second for one of 10 MB that is full of empty objects, and takes
what is no JSON: NaN, numbers beyond a float, half of a surrogate pair, UTF-16.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from json.decoder import scanstring  # type: ignore[attr-defined]  # in all versions of CPython
from math import isinf
from typing import Final, NamedTuple

from warren.broker.management.request import Json

MOST_DEPTH: Final = 64
"""Objects and lists that may be inside of each other."""
STEP: Final = 64
"""Values that are parsed in one step: they take some tenths of a millisecond."""
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NUMBER: Final = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS: Final[dict[str, Json]] = {"true": True, "false": False, "null": None}


class BodyLimits(NamedTuple):
    """Most bytes and JSON values of a body. Each object, list, text, number and word is a value."""

    bytes: int
    values: int


ORDINARY_BODY: Final = BodyLimits(1_000_000, 10_000)
MESSAGE_BODY: Final = BodyLimits(10_000_000, 10_000)
"""Limits of a body that may contain a message."""
DEFINITIONS_BODY: Final = BodyLimits(10_000_000, 1_000_000)


class NotJson(ValueError):
    """A text is no JSON, or is nested deeper than MOST_DEPTH."""


class TooManyValues(ValueError):
    """A text has more values than the request may have."""


def parse_in_steps(text: bytes, most: int) -> Generator[None, None, Json]:
    """Return the JSON value of a text in UTF-8 as the value of a generator that yields after each small step.

    :param most: values that it may have.
    :raises NotJson: if it is none.
    :raises TooManyValues: if it has more.
    """
    try:
        source = text.decode()
        # To decode 10 MB takes some milliseconds.
        yield
        # A text can have half of a surrogate pair only by an escape.
        parser = _Parser(source, "\\u" in source)
        at = parser.skip(0)
        while at >= 0:
            at = parser.value(at)
            if parser.count > most:
                raise TooManyValues(f"it has more than {most} values")
            if parser.count % STEP == 0:
                yield
    except (UnicodeError, RecursionError) as error:
        raise NotJson(str(error)) from None
    return parser.result


class _Parser:
    """State between the values of a text: the objects and lists that are open, with the name that comes next in each."""

    def __init__(self, source: str, has_escapes: bool) -> None:
        self._source = source
        self._has_escapes = has_escapes
        self._open: list[tuple[dict[str, Json] | list[Json], str]] = []
        self.count = 0
        self.result: Json = None

    def value(self, at: int) -> int:
        """Parse the value that begins at a position, without the content of an object or list.

        :return: position of the next value; -1 at the end of the text.
        """
        self.count += 1
        sign = self._source[at : at + 1]
        if sign == '"':
            found, at = self._text(at)
            return self._next(found, at)
        if sign in ("{", "["):
            container: dict[str, Json] | list[Json] = {} if sign == "{" else []
            at = self.skip(at + 1)
            if self._source[at : at + 1] == ("}" if sign == "{" else "]"):
                return self._next(container, at + 1)
            if len(self._open) == MOST_DEPTH:
                raise NotJson(f"nested deeper than {MOST_DEPTH}")
            name = ""
            if sign == "{":
                name, at = self._name(at)
            self._open.append((container, name))
            return at
        for word, meant in _WORDS.items():
            if self._source.startswith(word, at):
                return self._next(meant, at + len(word))
        return self._next(*self._number(at))

    def skip(self, at: int) -> int:
        """Return the position of what is no space, at or after a position."""
        found = _SPACE.match(self._source, at)
        return found.end() if found is not None else at

    def _next(self, value: Json, at: int) -> int:
        """Add a value to the innermost open container, and close those that end after it."""
        while True:
            at = self.skip(at)
            if not self._open:
                if at < len(self._source):
                    raise NotJson(f"unexpected text at character {at}")
                self.result = value
                return -1
            container, name = self._open.pop()
            sign = self._source[at : at + 1]
            at = self.skip(at + 1)
            if isinstance(container, dict):
                container[name] = value
                if sign == ",":
                    name, at = self._name(at)
            else:
                container.append(value)
            if sign == ",":
                self._open.append((container, name))
                return at
            if sign != ("}" if isinstance(container, dict) else "]"):
                raise NotJson(f"unexpected text before character {at}")
            value = container

    def _name(self, at: int) -> tuple[str, int]:
        """Parse the name of a member and its colon; return it with the position of the value."""
        if self._source[at : at + 1] != '"':
            raise NotJson(f"no name at character {at}")
        name, at = self._text(at)
        at = self.skip(at)
        if self._source[at : at + 1] != ":":
            raise NotJson(f"no colon at character {at}")
        return name, self.skip(at + 1)

    def _text(self, at: int) -> tuple[str, int]:
        try:
            found, end = scanstring(self._source, at + 1, True)
        except ValueError as error:
            raise NotJson(str(error)) from None
        if self._has_escapes:
            found.encode()  # raises UnicodeEncodeError for half of a surrogate pair
        return found, end

    def _number(self, at: int) -> tuple[int | float, int]:
        found = _NUMBER.match(self._source, at)
        if found is None:
            raise NotJson(f"no value at character {at}")
        whole, fraction, exponent = found.groups()
        try:
            number = int(whole) if fraction is None and exponent is None else float(found[0])
        except ValueError as error:
            raise NotJson(str(error)) from None
        if isinstance(number, float) and isinf(number):
            raise NotJson(f"the number at character {at} is too large")
        return number, found.end()
