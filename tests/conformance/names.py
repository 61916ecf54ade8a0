"""The names of a script as one broker knows them, and back: a prefix of the script's own, and names that the broker made.

Prefixes all have one length, and so have made names: what two brokers say of the same thing is the same byte for byte.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from copy import copy

from pamqp import base, commands
from pamqp.common import FieldTable, FieldValue

from tests.support.raw_client import made

NEUTRAL = b"script--"
NAMED = ("queue", "exchange", "destination", "source", "routing_key", "consumer_tag")
ARGUMENTS = ("alternate-exchange", "x-dead-letter-exchange", "x-dead-letter-routing-key")
COPIES = ("CC", "BCC")
GENERATED = re.compile(rb"(amq\.(?:gen|ctag)-)[\w-]{22}")


class Names:
    """Of one script on one broker."""

    def __init__(self, known: Collection[str]) -> None:
        """:param known: the names that get the prefix"""
        self.known = frozenset(known)
        self.prefix = uuid.uuid4().hex[: len(NEUTRAL)].encode()
        self._neutral: dict[bytes, bytes] = {}
        self._actual: dict[str, str] = {}

    @property
    def generated(self) -> list[str]:
        """The names that the broker made, in the script's words."""
        return list(self._actual)

    def actual(self, name: object) -> object:
        """A name of the script, as the broker knows it; anything else as it is."""
        if not isinstance(name, str):
            return name
        if name in self.known:
            return self.prefix.decode() + name
        return self._actual.get(name, name)

    def neutral(self, data: bytes) -> bytes:
        """What the broker says, in the script's words."""
        for found in GENERATED.finditer(data):
            if found[0] not in self._neutral:
                name = found[1] + f"{len(self._neutral):0>22}".encode()
                self._neutral[found[0]] = name
                self._actual[name.decode()] = found[0].decode()
        for actual, name in self._neutral.items():
            data = data.replace(actual, name)
        return data.replace(self.prefix, NEUTRAL)

    def text(self, said: str) -> str:
        return self.neutral(said.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def command(self, asked: base.Frame) -> base.Frame:
        """A method of the script for this broker."""
        fields: dict[str, object] = dict(asked)
        for field in NAMED:
            if field in fields:
                fields[field] = self.actual(fields[field])
        table = fields.get("arguments")
        if isinstance(table, dict):
            fields["arguments"] = {
                key: self.actual(value) if key in ARGUMENTS else value for key, value in table.items()
            }
        return made(type(asked), **fields)

    def properties(self, given: commands.Basic.Properties) -> commands.Basic.Properties:
        headers = given.headers
        if not headers or not any(key in headers for key in COPIES):
            return given
        named: FieldTable = {}
        for key, value in headers.items():
            copies: list[FieldValue] = [self.copy(one) for one in value] if isinstance(value, list) else []
            named[key] = copies if key in COPIES and isinstance(value, list) else value
        copied = copy(given)
        copied.headers = named
        return copied

    def copy(self, key: FieldValue) -> FieldValue:
        """A routing key among CC or BCC."""
        return str(self.actual(key)) if isinstance(key, str) else key
