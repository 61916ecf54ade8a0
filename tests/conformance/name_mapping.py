"""Mapping between the names of a script and those on one broker: a prefix for each script, and server-generated names.

All prefixes have the same length, and so have generated names: both brokers' replies become equal byte for byte.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from copy import copy

from pamqp import base, commands
from pamqp.common import FieldTable, FieldValue

from tests.support.raw_client import made

PREFIX_PLACEHOLDER = b"script--"
NAMED = ("queue", "exchange", "destination", "source", "routing_key", "consumer_tag")
ARGUMENTS = ("alternate-exchange", "x-dead-letter-exchange", "x-dead-letter-routing-key")
COPIES = ("CC", "BCC")
GENERATED = re.compile(rb"(amq\.(?:gen|ctag)-)[\w-]{22}")


class NameMapping:
    """Mapping for one script on one broker."""

    def __init__(self, known: Collection[str]) -> None:
        """:param known: names that get the prefix"""
        self.known = frozenset(known)
        self.prefix = uuid.uuid4().hex[: len(PREFIX_PLACEHOLDER)].encode()
        self._script_names: dict[bytes, bytes] = {}
        self._broker_names: dict[str, str] = {}

    @property
    def generated(self) -> list[str]:
        """Names that the broker generated, as the script uses them."""
        return list(self._broker_names)

    def to_broker_name(self, name: object) -> object:
        """Return the broker's name for a script's name; anything else unchanged."""
        if not isinstance(name, str):
            return name
        if name in self.known:
            return self.prefix.decode() + name
        return self._broker_names.get(name, name)

    def to_script_names(self, data: bytes) -> bytes:
        """Replace the broker's names in received data by the script's."""
        for found in GENERATED.finditer(data):
            if found[0] not in self._script_names:
                name = found[1] + f"{len(self._script_names):0>22}".encode()
                self._script_names[found[0]] = name
                self._broker_names[name.decode()] = found[0].decode()
        for to_broker_name, name in self._script_names.items():
            data = data.replace(to_broker_name, name)
        return data.replace(self.prefix, PREFIX_PLACEHOLDER)

    def text(self, texts: str) -> str:
        return self.to_script_names(texts.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def command(self, asked: base.Frame) -> base.Frame:
        """Return a method of the script with the broker's names."""
        fields: dict[str, object] = dict(asked)
        for field in NAMED:
            if field in fields:
                fields[field] = self.to_broker_name(fields[field])
        table = fields.get("arguments")
        if isinstance(table, dict):
            fields["arguments"] = {
                key: self.to_broker_name(value) if key in ARGUMENTS else value for key, value in table.items()
            }
        return made(type(asked), **fields)

    def properties(self, given: commands.Basic.Properties) -> commands.Basic.Properties:
        headers = given.headers
        if not headers or not any(key in headers for key in COPIES):
            return given
        named: FieldTable = {}
        for key, value in headers.items():
            copies: list[FieldValue] = [self.copy(item) for item in value] if isinstance(value, list) else []
            named[key] = copies if key in COPIES and isinstance(value, list) else value
        copied = copy(given)
        copied.headers = named
        return copied

    def copy(self, key: FieldValue) -> FieldValue:
        """Return a routing key of CC or BCC with the broker's name."""
        return str(self.to_broker_name(key)) if isinstance(key, str) else key
