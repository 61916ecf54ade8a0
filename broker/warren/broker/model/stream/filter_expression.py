"""Filter expressions of stream consumers: a condition on the headers and properties of a message, in the syntax of SQL.

The language is the part of RabbitMQ's SQL filter expressions (AMQP 1.0, RabbitMQ 4.2 and later) that AMQP 0-9-1 has a use
for: https://www.rabbitmq.com/docs/stream-filtering. Nothing of an expression is executed as Python; its parser makes
closures of the functions of this module. Logic has three values: true, false, and unknown, which is None. A message
is accepted if the expression is true for it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Final, NamedTuple, Optional, TypeAlias

from warren.wire.content import header_payload
from warren.wire.field_tables import Field, TableError
from warren.wire.properties import NAMES, Properties, decode

MAX_LENGTH: Final = 4096
"""Most characters of an expression."""
MAX_TOKENS: Final = 200
"""Most words, numbers, texts and signs of an expression."""
MAX_DEPTH: Final = 32
"""Deepest nesting of parentheses, NOT and signs of numbers."""
MAX_PATTERN: Final = 255
"""Most characters of the pattern of LIKE."""
HEADER: Final = "headers"
"""Section of names without a prefix: the message's header table."""

PROPERTIES: Final = frozenset(NAMES) - {HEADER}
"""Names that the prefix `p.` may have."""
SECTIONS: Final[Mapping[str, str]] = {
    "p": "properties",
    "properties": "properties",
    "h": "properties",
    "header": "properties",
    "a": HEADER,
    "application_properties": HEADER,
}
"""Prefixes of names, with the sections that they stand for."""
KEYWORDS: Final = frozenset(("AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "ESCAPE", "TRUE", "FALSE"))

_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<number>[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    |(?P<name>[^\W\d]\w*|\[[^\[\]]+\])
    |(?P<sign><>|!=|<=|>=|[-+*/%=<>(),.])
    )""",
    re.VERBOSE,
)

Scalar: TypeAlias = "bool | int | float | str"
"""A value that can be compared. Every other one, such as a table, is `OTHER`."""
Result: TypeAlias = "Scalar | _Other | None"
"""A value of an expression; None is NULL, or unknown."""
Evaluate: TypeAlias = "Callable[[MessageFields], Result]"


class _Other:
    """Value of a header that is there, and equal to nothing: a table, an array, or bytes."""


OTHER: Final = _Other()


class ExpressionError(ValueError):
    """An expression is malformed, or larger than the limits. The text says what is wrong, and at which character."""


class MessageFields:
    """Headers and properties of one message, decoded when an expression first needs them.

    :param content: frames of the message, the content header frame first.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._properties: Optional[Properties] = None  # noqa: UP045

    def get(self, section: str, name: str) -> Result:
        """Return a header or a property; None if the message has none of that name."""
        properties = self._properties
        if properties is None:
            try:
                properties = decode(header_payload(self._content), "x-death")
            except TableError:
                properties = Properties()
            self._properties = properties
        if section == HEADER:
            field = properties.headers.get(name)
            return None if field is None else _scalar(field)
        value = properties.get(name)
        return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else _as_number(value)


def _as_number(value: object) -> Result:
    return value if isinstance(value, int) else None


def _scalar(field: Field) -> Result:
    value = field.value
    if isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Decimal):
        return float(value)
    return None if field.kind == "V" else OTHER


@dataclass(frozen=True)
class Node:
    """A part of an expression.

    :param evaluate: returns its value for a message.
    :param needed: bytes of which each message for which this part is true has at least one in its content header frame;
        None if there are no such bytes.
    :param constant: its value, if it is a literal.
    :param needed_if_known: as `needed`, for each message for which this part is true or false.
    """

    evaluate: Evaluate
    needed: tuple[bytes, ...] | None = None
    constant: Result = None
    needed_if_known: tuple[bytes, ...] | None = None
    header: str | None = None
    """Name of the header that it is, if it is one."""


class FilterExpression:
    """A parsed filter expression.

    :raises ExpressionError: if it is malformed, or larger than the limits.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._root = _Parser(text).parse()
        self.needles = self._root.needed
        """Bytes of which each accepted message has at least one in its content header frame; None if none are known.

        They are encoded headers, so that chunks of messages can be passed over by a search for bytes.
        """

    def may_match(self, data: bytes) -> bool:
        """Return False if no message within these bytes can be accepted."""
        needles = self.needles
        return needles is None or any(needle in data for needle in needles)

    def accepts(self, content: bytes) -> bool:
        """Return whether the expression is true for a message.

        :param content: frames of the message, the content header frame first.
        """
        return self._root.evaluate(MessageFields(content)) is True


class _Token:
    def __init__(self, kind: str, text: str, at: int) -> None:
        self.kind = kind
        """`number`, `text`, `name`, `keyword`, `sign` or `end`."""
        self.text = text
        self.at = at


def _tokens(text: str) -> list[_Token]:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"it has {len(text)} characters, and {MAX_LENGTH} are allowed")
    found: list[_Token] = []
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            what = "a text without its end" if text[start] in "'\"" else f"unexpected {text[start]!r}"
            raise ExpressionError(f"{what} at character {start + 1}")
        kind, word = match.lastgroup, match[match.lastgroup]
        if kind == "name" and word in KEYWORDS:
            kind = "keyword"
        found.append(_Token(kind, word, match.start(match.lastgroup) + 1))
        if len(found) > MAX_TOKENS:
            raise ExpressionError(f"it has more than {MAX_TOKENS} words and signs")
        position = match.end()
    found.append(_Token("end", "", len(text) + 1))
    return found


class _Parser:
    """Recursive-descent parser of one expression."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    def parse(self) -> Node:
        if self._peek().kind == "end":
            raise ExpressionError("it is empty")
        node = self._any_of()
        if self._peek().kind != "end":
            raise self._unexpected()
        return node

    # Tokens

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> str:
        """Return the next token's text and go on, if it is one of these signs or keywords; else return nothing."""
        token = self._peek()
        if token.kind in ("sign", "keyword") and token.text in texts:
            self._next += 1
            return token.text
        return ""

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._unexpected(f"{text} is expected")

    def _unexpected(self, expected: str = "") -> ExpressionError:
        token = self._peek()
        what = (
            "it ends early" if token.kind == "end" else f"unexpected {token.text!r} at character {token.at}"
        )
        return ExpressionError(f"{what}: {expected}" if expected else what)

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"it is nested deeper than {MAX_DEPTH} at character {self._peek().at}")

    # Logic

    def _any_of(self) -> Node:
        parts = [self._all_of()]
        while self._take("OR"):
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else _any_of(parts)

    def _all_of(self) -> Node:
        parts = [self._negation()]
        while self._take("AND"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else _all_of(parts)

    def _negation(self) -> Node:
        if not self._take("NOT"):
            return self._predicate()
        self._enter()
        node = _negated(self._negation())
        self._depth -= 1
        return node

    def _predicate(self) -> Node:
        left = self._sum()
        compare = self._take("=", "<>", "!=", "<", "<=", ">", ">=")
        if compare:
            return _comparison(compare, left, self._sum())
        if self._take("IS"):
            is_not = bool(self._take("NOT"))
            self._expect("NULL")
            return _is_null(left, is_not)
        is_not = bool(self._take("NOT"))
        if self._take("LIKE"):
            node = _like(left, self._pattern())
        elif self._take("IN"):
            node = _membership(left, self._list())
        elif is_not:
            raise self._unexpected("LIKE or IN is expected")
        else:
            return left
        return _negated(node) if is_not else node

    def _pattern(self) -> list[_Part]:
        at = self._peek().at
        pattern = self._text("a text")
        escape = ""
        if self._take("ESCAPE"):
            escape = self._text("a text")
            if len(escape) != 1:
                raise ExpressionError(f"ESCAPE has to be one character, and is {escape!r}")
        if len(pattern) > MAX_PATTERN:
            raise ExpressionError(
                f"the pattern at character {at} has {len(pattern)} characters, and {MAX_PATTERN} are allowed"
            )
        return _compile_pattern(pattern, escape, at)

    def _list(self) -> list[Node]:
        self._expect("(")
        items = [self._sum()]
        while self._take(","):
            items.append(self._sum())
        self._expect(")")
        return items

    # Values

    def _sum(self) -> Node:
        node = self._product()
        while sign := self._take("+", "-"):
            node = _arithmetic(sign, node, self._product())
        return node

    def _product(self) -> Node:
        node = self._signed()
        while sign := self._take("*", "/", "%"):
            node = _arithmetic(sign, node, self._signed())
        return node

    def _signed(self) -> Node:
        sign = self._take("+", "-")
        if not sign:
            return self._value()
        self._enter()
        node = _arithmetic(sign, _literal(0), self._signed())
        self._depth -= 1
        return node

    def _value(self) -> Node:
        token = self._peek()
        if token.kind == "number":
            self._next += 1
            return _literal(_number(token))
        if token.kind == "text":
            return _literal(self._text(""))
        if token.kind == "name":
            return self._name()
        word = self._take("TRUE", "FALSE", "NULL")
        if word:
            return _literal({"TRUE": True, "FALSE": False, "NULL": None}[word])
        if self._take("("):
            self._enter()
            node = self._any_of()
            self._expect(")")
            self._depth -= 1
            return node
        raise self._unexpected("a value is expected")

    def _text(self, expected: str) -> str:
        token = self._peek()
        if token.kind != "text":
            raise self._unexpected(f"{expected} is expected")
        self._next += 1
        quote = token.text[0]
        return token.text[1:-1].replace(quote * 2, quote)

    def _name(self) -> Node:
        first = self._peek()
        self._next += 1
        if not self._take("."):
            if self._peek().text == "(":
                raise ExpressionError(f"unknown function {first.text!r} at character {first.at}")
            return _header(_plain(first.text))
        second = self._peek()
        if second.kind != "name":
            raise self._unexpected("a name is expected")
        self._next += 1
        section = SECTIONS.get(first.text)
        name = _plain(second.text)
        if section is None:
            raise ExpressionError(f"unknown prefix {first.text!r} at character {first.at}")
        if section == HEADER:
            return _header(name)
        if name not in PROPERTIES:
            raise ExpressionError(f"unknown property {name!r} at character {second.at}")
        return Node(lambda fields: fields.get(section, name))


def _plain(name: str) -> str:
    return name[1:-1] if name.startswith("[") else name


def _number(token: _Token) -> int | float:
    if token.text.isdigit():
        if len(token.text) > 19:
            raise ExpressionError(f"the number at character {token.at} has more than 19 digits")
        return int(token.text)
    return float(token.text)


def _literal(value: Result) -> Node:
    return Node(lambda _: value, constant=value)


def _header(name: str) -> Node:
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > 255:
        raise ExpressionError(f"the name {name[:40]!r}... is longer than 255 bytes")
    needed = (bytes((len(encoded),)) + encoded,)
    return Node(lambda fields: fields.get(HEADER, name), needed=needed, needed_if_known=needed, header=name)


def _equal_needles(left: Node, right: Node) -> tuple[bytes, ...] | None:
    """Return the bytes of a header that is equal to a text, as they are encoded; None for other operands."""
    for node, other in ((left, right), (right, left)):
        if node.header is not None and isinstance(other.constant, str) and node.needed is not None:
            text = other.constant.encode("utf-8", "surrogateescape")
            return (b"".join((node.needed[0], b"S", len(text).to_bytes(4, "big"), text)),)
    return None


def _known(*nodes: Node) -> tuple[bytes, ...] | None:
    """Return bytes of which each message has one for which all of these values are known; None if there are none."""
    return next((node.needed_if_known for node in nodes if node.needed_if_known is not None), None)


_COMPARISONS: Final[Mapping[str, Callable[[Scalar, Scalar], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _compare(sign: str, left: Result, right: Result) -> bool | None:
    """Compare two values; None if one is NULL, or their types differ, or the order of booleans is asked for."""
    if isinstance(left, str):
        comparable = isinstance(right, str)
    elif isinstance(left, bool):
        comparable = isinstance(right, bool) and sign in ("=", "<>", "!=")
    else:
        comparable = isinstance(left, int | float) and (
            isinstance(right, int | float) and not isinstance(right, bool)
        )
    if not comparable:
        return None
    assert not isinstance(left, _Other | None)
    assert not isinstance(right, _Other | None)
    return _COMPARISONS[sign](left, right)


def _comparison(sign: str, left: Node, right: Node) -> Node:
    first, second = left.evaluate, right.evaluate
    known = _known(left, right)
    needed = _equal_needles(left, right) if sign == "=" else None
    return Node(
        lambda fields: _compare(sign, first(fields), second(fields)),
        needed=needed or known,
        needed_if_known=known,
    )


def _is_null(node: Node, is_not: bool) -> Node:
    value = node.evaluate
    if is_not:
        return Node(lambda fields: value(fields) is not None, needed=node.needed_if_known)
    return Node(lambda fields: value(fields) is None)


class _Part(NamedTuple):
    """A part of a pattern of LIKE, between its `%`: a regular expression without any repetition, and its length."""

    regex: re.Pattern[str]
    size: int


def _compile_pattern(pattern: str, escape: str, at: int) -> list[_Part]:
    """Return the parts of a pattern of LIKE.

    :param at: the character of the expression at which the pattern begins, for errors.
    """
    parts: list[list[str]] = [[]]
    position = 0
    while position < len(pattern):
        sign = pattern[position]
        if sign == escape:
            position += 1
            if position == len(pattern) or pattern[position] not in ("%", "_", escape):
                raise ExpressionError(
                    f"{escape!r} in the pattern at character {at} has to be followed by %, _ or itself"
                )
            parts[-1].append(re.escape(pattern[position]))
        elif sign == "%":
            parts.append([])
        else:
            parts[-1].append("." if sign == "_" else re.escape(sign))
        position += 1
    return [_Part(re.compile("".join(part), re.DOTALL), len(part)) for part in parts]


def _matches(text: str, parts: Sequence[_Part]) -> bool:
    """Return whether a text consists of these parts, with anything between them.

    Each part is taken where it first occurs, which is never worse than later. The time is at most in proportion to the
    length of the text times that of the pattern.
    """
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first.regex.fullmatch(text) is not None
    if first.regex.match(text) is None:
        return False
    position = first.size
    for part in parts[1:-1]:
        found = part.regex.search(text, position)
        if found is None:
            return False
        position = found.end()
    start = len(text) - last.size
    return start >= position and last.regex.match(text, start) is not None


def _like(node: Node, parts: Sequence[_Part]) -> Node:
    value = node.evaluate

    def evaluate(fields: MessageFields) -> bool | None:
        text = value(fields)
        return _matches(text, parts) if isinstance(text, str) else None

    return Node(evaluate, needed=node.needed_if_known, needed_if_known=node.needed_if_known)


def _membership(node: Node, items: list[Node]) -> Node:
    return _any_of([_comparison("=", node, item) for item in items])


def _arithmetic(sign: str, left: Node, right: Node) -> Node:
    first, second = left.evaluate, right.evaluate

    def evaluate(fields: MessageFields) -> Result:
        return _calculate(sign, first(fields), second(fields))

    if left.constant is not None and right.constant is not None:
        return _literal(_calculate(sign, left.constant, right.constant))
    known = _known(left, right)
    return Node(evaluate, needed=known, needed_if_known=known)


def _calculate(sign: str, left: Result, right: Result) -> Result:
    """Return a result of arithmetic; None if an operand is no number, or there is no result, as for a division by 0.

    As in SQL, integers are divided without a remainder, and the sign of a remainder is that of the dividend.
    """
    for value in (left, right):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    integers = isinstance(left, int) and isinstance(right, int)
    try:
        if sign == "+":
            return left + right
        if sign == "-":
            return left - right
        if sign == "*":
            return left * right
        if sign == "%":
            return left - right * int(_quotient(int(left), int(right))) if integers else None
        return _quotient(int(left), int(right)) if integers else left / right
    except ArithmeticError:
        return None


def _quotient(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _truth(value: Result) -> bool | None:
    return value if isinstance(value, bool) else None


def _negated(node: Node) -> Node:
    value = node.evaluate

    def evaluate(fields: MessageFields) -> bool | None:
        truth = _truth(value(fields))
        return None if truth is None else not truth

    return Node(evaluate, needed=node.needed_if_known, needed_if_known=node.needed_if_known)


def _joined(parts: list[Node], decisive: bool) -> Evaluate:
    """Return the evaluation of AND (`decisive` is False) or OR (True) of all parts.

    A part with the decisive value decides; else the result is unknown if one of them is.
    """
    values = [part.evaluate for part in parts]

    def evaluate(fields: MessageFields) -> bool | None:
        result: bool | None = not decisive
        for value in values:
            truth = _truth(value(fields))
            if truth is decisive:
                return decisive
            if truth is None:
                result = None
        return result

    return evaluate


def _all_of(parts: list[Node]) -> Node:
    # All of them have to be there; the longest bytes are the rarest.
    needed = [part.needed for part in parts if part.needed is not None]
    best = max(needed, key=lambda needles: min(map(len, needles)), default=None)
    return Node(_joined(parts, False), needed=best)


def _any_of(parts: list[Node]) -> Node:
    needed = [part.needed for part in parts if part.needed is not None]
    known = parts[0].needed_if_known
    same = all(part.needed_if_known == known for part in parts)
    return Node(
        _joined(parts, True),
        needed=tuple(dict.fromkeys(chain(*needed))) if len(needed) == len(parts) else None,
        # Unknown or false without the header, for IN: each part compares the same header.
        needed_if_known=known if same else None,
    )


__all__ = ["ExpressionError", "FilterExpression", "MessageFields"]
