"""Erlang terms as `rabbitmqctl encode` reads them, and their external term format.

https://www.erlang.org/doc/apps/erts/erl_ext_dist.html
"""

from __future__ import annotations

import re
import struct
from typing import Final

from warren.core.erlang_terms import Atom, ErlangString, Term

VERSION: Final = 131
"""First byte of an encoded term."""
TOKEN: Final = re.compile(
    r"\s*(?:(?P<float>-?\d+\.\d+(?:[eE][+-]?\d+)?)|(?P<integer>-?\d+)|(?P<atom>[a-z][\w@]*|'(?:[^'\\]|\\.)*')"
    r'|(?P<string>"(?:[^"\\]|\\.)*")|\$(?P<char>\\.|.)|(?P<sign><<|>>|[\[\]{},]))',
    re.DOTALL,
)
ESCAPES: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "e": "\x1b",
    "s": " ",
    "0": "\0",
}
CLOSING: Final = {"[": "]", "{": "}", "<<": ">>"}


def parse_term(text: str) -> Term:
    """Read a term: an atom, a number, a string, a binary, a list or a tuple of them.

    :raises ValueError: if the text is anything else.
    """
    term, end = _term(text, 0)
    if text[end:].strip() not in ("", "."):
        raise ValueError(text)
    return term


def _token(text: str, at: int) -> tuple[str, str, int]:
    """Return the kind and the text of the next token, and the position after it."""
    found = TOKEN.match(text, at)
    if found is None or found.lastgroup is None:
        raise ValueError(text)
    return found.lastgroup, found[found.lastgroup], found.end()


def _term(text: str, at: int) -> tuple[Term, int]:
    kind, word, end = _token(text, at)
    if kind == "float":
        return float(word), end
    if kind == "integer":
        return int(word), end
    if kind == "atom":
        return Atom(_unescaped(word[1:-1]) if word[0] == "'" else word), end
    if kind == "string":
        return ErlangString(_unescaped(word[1:-1])), end
    if kind == "char":
        return ord(_unescaped(word)), end
    if word not in CLOSING:
        raise ValueError(text)
    items, end = _items(text, end, CLOSING[word])
    if word == "{":
        return tuple(items), end
    return (items if word == "[" else _binary(items)), end


def _items(text: str, at: int, closing: str) -> tuple[list[Term], int]:
    """Return the terms up to a closing sign, and the position after it."""
    items: list[Term] = []
    kind, word, end = _token(text, at)
    if (kind, word) == ("sign", closing):
        return items, end
    while True:
        item, at = _term(text, at)
        items.append(item)
        kind, word, at = _token(text, at)
        if (kind, word) == ("sign", closing):
            return items, at
        if (kind, word) != ("sign", ","):
            raise ValueError(text)


def _binary(segments: list[Term]) -> str:
    """Return the binary of bytes and strings, in the form that `format_term` prints."""
    found = bytearray()
    for segment in segments:
        if isinstance(segment, ErlangString):
            found += segment.encode("latin-1")
        elif isinstance(segment, int):
            found.append(segment % 256)
        else:
            raise ValueError(segment)
    return found.decode("utf-8", "surrogateescape")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)


def encode_term(term: Term) -> bytes:
    """Return a term in the external term format."""
    return bytes([VERSION]) + _encoded(term)


def _encoded(term: Term) -> bytes:
    if isinstance(term, Atom):
        name = term.encode()
        return struct.pack(">BB", 119, len(name)) + name
    if isinstance(term, ErlangString):
        return _encoded_list([ord(each) for each in term])
    if isinstance(term, str):
        content = term.encode("utf-8", "surrogateescape")
        return struct.pack(">BI", 109, len(content)) + content
    if isinstance(term, float):
        return struct.pack(">Bd", 70, term)
    if isinstance(term, int):
        return _encoded_integer(term)
    if isinstance(term, tuple):
        head = struct.pack(">BB", 104, len(term)) if len(term) < 256 else struct.pack(">BI", 105, len(term))
        return head + b"".join(map(_encoded, term))
    if isinstance(term, list):
        return _encoded_list(term)
    raise ValueError(term)


def _encoded_integer(number: int) -> bytes:
    if 0 <= number < 256:
        return bytes([97, number])
    if -(2**31) <= number < 2**31:
        return struct.pack(">Bi", 98, number)
    digits = abs(number).to_bytes((abs(number).bit_length() + 7) // 8, "little")
    return struct.pack(">BBB", 110, len(digits), number < 0) + digits


def _encoded_list(items: list[Term] | list[int]) -> bytes:
    if not items:
        return bytes([106])
    if len(items) < 2**16 and all(type(item) is int and 0 <= item < 256 for item in items):
        return struct.pack(">BH", 107, len(items)) + bytes(item for item in items if isinstance(item, int))
    return struct.pack(">BI", 108, len(items)) + b"".join(map(_encoded, items)) + bytes([106])


def decode_term(content: bytes) -> Term:
    """Return the term of which this is the external term format.

    :raises ValueError: if it is not, or of a kind that settings do not have.
    """
    if not content or content[0] != VERSION:
        raise ValueError("no encoded term")
    term, end = _decoded(content, 1)
    if end != len(content):
        raise ValueError("bytes after the term")
    return term


def _decoded(content: bytes, at: int) -> tuple[Term, int]:
    try:
        return _decoded_value(content, at)
    except (struct.error, IndexError) as error:
        raise ValueError("an incomplete term") from error


def _decoded_value(content: bytes, at: int) -> tuple[Term, int]:
    tag, at = content[at], at + 1
    if tag == 97:
        return content[at], at + 1
    if tag == 98:
        return struct.unpack_from(">i", content, at)[0], at + 4
    if tag == 110:
        length, sign = content[at], content[at + 1]
        digits, at = _part(content, at + 2, length)
        number = int.from_bytes(digits, "little")
        return -number if sign else number, at
    if tag == 70:
        return struct.unpack_from(">d", content, at)[0], at + 8
    if tag in (115, 119):
        name, at = _part(content, at + 1, content[at])
        return Atom(name.decode()), at
    if tag in (100, 118):
        name, at = _part(content, at + 2, struct.unpack_from(">H", content, at)[0])
        return Atom(name.decode()), at
    if tag == 107:
        text, at = _part(content, at + 2, struct.unpack_from(">H", content, at)[0])
        return _string_or_list(text), at
    if tag == 109:
        binary, at = _part(content, at + 4, struct.unpack_from(">I", content, at)[0])
        return binary.decode("utf-8", "surrogateescape"), at
    if tag == 106:
        return [], at
    if tag in (104, 105, 108):
        length = content[at] if tag == 104 else struct.unpack_from(">I", content, at)[0]
        at += 1 if tag == 104 else 4
        items: list[Term] = []
        for _ in range(length):
            item, at = _decoded(content, at)
            items.append(item)
        if tag != 108:
            return tuple(items), at
        if content[at] != 106:
            raise ValueError("an improper list")
        return items, at + 1
    raise ValueError(f"a term of kind {tag}")


def _part(content: bytes, at: int, length: int) -> tuple[bytes, int]:
    if at + length > len(content):
        raise ValueError("an incomplete term")
    return content[at : at + length], at + length


def _string_or_list(content: bytes) -> Term:
    """Return a list of bytes as Erlang prints it: a string if all are printable."""
    text = content.decode("latin-1")
    if all(each.isprintable() or each in "\n\t\r" for each in text):
        return ErlangString(text)
    return list(content)
