"""One request of an operator, and why it may be refused."""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

from warren.broker.model import operator_errors
from warren.core.errors import ExitStatus

Json: TypeAlias = Any
"""What the json module makes and takes."""

UNSHOWN: Final = ("password", "definitions")


class Refused(operator_errors.OperationRefused):
    """The request cannot be done. Its text is one line: what is wrong, and what to do where that is not plain.

    :param status: the exit status of the command that asked.
    """

    def __init__(self, text: str, status: int = ExitStatus.USAGE) -> None:
        super().__init__(text)
        self.status = int(status)


class Request:
    """What a verb is asked: its arguments by name. Each is taken as the type that the verb expects.

    Every method raises `Refused`, naming the argument, if it is missing or of another type.
    """

    def __init__(self, arguments: dict[str, Json]) -> None:
        self._arguments = arguments

    def shown(self) -> str:
        """For the log: without what is secret or long."""
        return json.dumps({name: value for name, value in self._arguments.items() if name not in UNSHOWN})

    def has(self, name: str) -> bool:
        return self._arguments.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        value = self._arguments.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise Refused(f"{name} has to be a text" if value is not None else f"{name} is missing")
        return value

    def data(self, name: str, default: str | None = None) -> bytes:
        """A name as it is on the wire."""
        return self.text(name, default).encode("utf-8", "surrogateescape")

    def vhost(self) -> bytes:
        return self.data("vhost", "/")

    def texts(self, name: str) -> list[str]:
        value = self._arguments.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise Refused(f"{name} has to be a list of texts")
        return value

    def flag(self, name: str) -> bool:
        value = self._arguments.get(name)
        if value is not None and not isinstance(value, bool):
            raise Refused(f"{name} has to be true or false")
        return bool(value)

    def number(self, name: str, default: int) -> int:
        value = self._arguments.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise Refused(f"{name} has to be an integer")
        return value

    def value(self, name: str) -> Json:
        """A JSON value of any type."""
        if name not in self._arguments:
            raise Refused(f"{name} is missing")
        return self._arguments[name]
