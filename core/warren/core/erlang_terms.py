"""Values as Erlang prints them (`~tp`), for the texts of RabbitMQ's validation errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

LINE: Final = 78
"""Column beyond which Erlang breaks the line of a printed term."""


class Atom(str):
    """Erlang atom, such as `no_scheme`."""

    __slots__ = ()


class ErlangString(str):
    """Erlang string: a list of characters, which is printed in quotation marks."""

    __slots__ = ()


Term: TypeAlias = (
    "Atom | str | int | float | bool | Sequence[Term] | tuple[Term, ...] | dict[str, Term] | None"
)
"""Term: a JSON value as RabbitMQ decodes it (strings are binaries), or a tuple, an atom or an Erlang string."""


def format_term(term: Term, column: int = 0) -> str:
    """Return a term as Erlang's pretty printer writes it.

    :param column: column at which the text begins; a term that does not fit into a line is broken.
    """
    text = _flat(term)
    if column + len(text) <= LINE:
        return text
    return _broken(term, column)


def _flat(term: Term) -> str:
    if term is None or isinstance(term, bool):
        return {None: "null", True: "true", False: "false"}[term]
    if isinstance(term, int | float):
        return repr(term)
    if isinstance(term, Atom):
        plain = term[:1].islower() and term.replace("_", "").replace("@", "").isalnum()
        return str(term) if plain else "'" + term.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(term, ErlangString):
        return _quoted(term) if term else "[]"
    if isinstance(term, str):
        return _binary(term)
    if isinstance(term, tuple):
        return "{" + ",".join(map(_flat, term)) + "}"
    if isinstance(term, dict):
        return "#{" + ",".join(f"{_flat(key)} => {_flat(term[key])}" for key in sorted(term)) + "}"
    return "[" + ",".join(map(_flat, term)) + "]"


def _binary(text: str) -> str:
    if all(each.isprintable() or each in "\n\t\r" for each in text):
        coding = "" if all(ord(each) < 256 for each in text) and text.isascii() else "/utf8"
        return f"<<{_quoted(text)}{coding}>>" if text else "<<>>"
    return "<<" + ",".join(str(each) for each in text.encode("utf-8", "surrogateescape")) + ">>"


def _quoted(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def _broken(term: Term, column: int) -> str:
    """Return a tuple or a list with its elements on as many lines as they need."""
    if isinstance(term, str) or not isinstance(term, tuple | list):
        return _flat(term)
    opening, closing = "{}" if isinstance(term, tuple) else "[]"
    at = column + 1
    separator = ",\n" + " " * at
    if isinstance(term, list):
        return opening + separator.join(format_term(each, at) for each in term) + closing
    lines: list[str] = []
    line = ""
    for each in term:
        text = _flat(each)
        is_simple = not isinstance(each, tuple | list | dict) and line and not line.endswith(("}", "]"))
        if is_simple and at + len(line) + 1 + len(text) < LINE:
            # Simple elements share a line while they fit.
            line = f"{line},{text}"
            continue
        if line:
            lines.append(line)
        line = format_term(each, at)
    lines.append(line)
    return opening + separator.join(lines) + closing
