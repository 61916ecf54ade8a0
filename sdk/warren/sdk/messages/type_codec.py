"""Type codecs: write the values of a type as JSON or MessagePack, and read them back, equal or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any, Final, Literal, NoReturn, TypeVar, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json

from warren.sdk.errors import ConfigError
from warren.sdk.messages.content_types import pack, unpack
from warren.sdk.messages.schema_findings import Findings, examine
from warren.sdk.messages.tightened_schema import build, tightened
from warren.sdk.messages.types import Message
from warren.sdk.messages.validation_errors import format_validation_error

Value = TypeVar("Value")

_IDENTITY: Final[object] = object.__eq__
_CALLS: Final = re.compile(
    r"^(?:Error serializing to JSON: )?(?:PydanticSerializationError: )?(?:Error calling function `rfc3339`: ValueError: )?"
)
"""Beginning of an error of pydantic for a time that cannot be written; the reason follows."""
_FORMER_INPUT: Final = re.compile(r" with value `.*?`(?= - serialized value)", re.DOTALL)
"""The value in an error of pydantic before 2.12."""
_INPUT: Final = re.compile(r"\[(?:field_name='(\w+)', )?input_value=.*?, input_type=(\w+)\]", re.DOTALL)
"""The value, and its class, in an error of pydantic: the class is kept."""


class TypeCodec:
    """Writer and reader of the values of one type.

    What it writes reads back equal; a value of which that is not true is refused. Where the type decides it, nothing is
    checked for each value. In a message class every time needs a time zone and is written in UTC, also in plain models
    and dataclasses inside it.

    :param kind: any type that pydantic validates.
    :raises pydantic.errors.PydanticUserError: if pydantic cannot validate the type.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.name: str = getattr(kind, "__name__", None) or str(kind)
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        adapter.rebuild()
        schema: Any = adapter.core_schema
        self.findings: Findings = examine(schema)
        findings = self.findings
        self._checks_values = not findings.certain
        self._classes = findings.classes
        # Values that cannot have changed since their validation need no check of their types, which takes as long as
        # the writing itself.
        self._warnings: Literal["error"] | bool = (
            "error" if findings.mutable or not findings.certain else True
        )
        if isinstance(kind, type) and issubclass(kind, Message):
            # Message classes are tightened when they are made.
            self._validator, self._serializer = kind.__pydantic_validator__, kind.__pydantic_serializer__
        else:
            self._validator, self._serializer = build(tightened(schema))

    def check_writable(self) -> None:
        """Check that values of the type can be written so that they read back.

        :raises ConfigError: if they cannot; the text names the fields and the remedies.
        """
        if self.findings.faults:
            raise ConfigError(f"{self.name} cannot be read back: {'; '.join(self.findings.faults)}")

    def write_json(self, value: Any) -> bytes:
        """Return a value of the type as JSON.

        :raises ConfigError: if it cannot be written, or what is written would not read back equal.
        """
        if self.findings.faults:
            self.check_writable()
        try:
            body = self._serializer.to_json(value, by_alias=True, warnings=self._warnings)
        except ValueError as error:
            self._refuse(value, error)
        if self.findings.floats and (b"NaN" in body or b"Infinity" in body):
            require_finite(self.name, body)
        if self._checks_values or (self._classes and self._has_subclasses()):
            self._verify(value, body, self.read_json)
        return body

    def write_msgpack(self, value: Any) -> bytes:
        """Return a value of the type as MessagePack.

        :raises ConfigError: if it cannot be written, what is written would not read back equal, or msgpack is not
            installed.
        """
        if self.findings.faults:
            self.check_writable()
        try:
            body = pack(
                self._serializer.to_python(value, mode="json", by_alias=True, warnings=self._warnings)
            )
        except (ValueError, OverflowError) as error:
            self._refuse(value, error)
        if self._checks_values or (self._classes and self._has_subclasses()):
            self._verify(value, body, self.read_msgpack)
        return body

    def read_json(self, body: bytes) -> Any:
        """Return the value that JSON holds.

        :raises pydantic.ValidationError: if it is not of the type.
        """
        return self._validator.validate_json(body)

    def read_msgpack(self, body: bytes) -> Any:
        """Return the value that MessagePack holds.

        :raises ValueError: if the body is not valid MessagePack.
        :raises pydantic.ValidationError: if it is not of the type.
        """
        value = unpack(body)
        if self.findings.strict:
            # A strict type reads the times and identifiers of JSON, but no texts in place of Python objects.
            return self._validator.validate_json(to_json(value))
        return self._validator.validate_python(value)

    def read_object(self, value: object) -> Any:
        """Return a Python object as a value of the type.

        :raises pydantic.ValidationError: if it is not of the type.
        """
        return self._validator.validate_python(value)

    def _has_subclasses(self) -> bool:
        return any(each.__subclasses__() for each in self._classes)

    def _verify(self, value: Any, body: bytes, read: Any) -> None:
        try:
            found = read(body)
        except ValidationError as error:
            raise ConfigError(
                f"a {self.name} is written so that it cannot be read back: {format_validation_error(error)}"
            ) from None
        path = difference(value, found)
        if path is not None:
            raise ConfigError(
                f"a {self.name} is not read back as it was written: {path[1:] or 'the value'} changes. Give the field a type"
                " or a serialiser and a validator that fit each other"
            )

    def _refuse(self, value: Any, error: Exception) -> NoReturn:
        """Raise a ConfigError for a value that cannot be written; its text contains none of the value."""
        reason = _INPUT.sub(lambda found: f"(found {found[2]})", str(error))
        reason = _FORMER_INPUT.sub("", reason)
        reason = " ".join(_CALLS.sub("", reason).split())
        field = self._field_that_fails(value)
        raise ConfigError(f"a {self.name} cannot be written: {field}{reason}") from None

    def _field_that_fails(self, value: Any) -> str:
        for name in getattr(type(value), "model_fields", ()):
            try:
                self._serializer.to_json(value, include={name}, by_alias=True, warnings="error")
            except ValueError:
                return f"{name}: "
        return ""


def require_finite(owner: str, body: bytes) -> None:
    """Check that JSON contains no infinite number, and none that is not a number: JSON has neither.

    :param owner: name of the type that was written, for the error text.
    :param body: JSON, in which they may stand as `Infinity` and `NaN`.
    :raises ConfigError: if it contains one.
    """
    mark = object()
    try:
        path = _find(json.loads(body, parse_constant=lambda _: mark), mark)
    except RecursionError:
        path = ""
    if path is not None:
        raise ConfigError(
            f"a {owner} cannot be written: {path[1:] or 'it'} is infinite or not a number, which JSON cannot express:"
            " leave it out, send None, or configure its class with ser_json_inf_nan='strings'"
        )


def _find(value: Any, mark: object) -> str | None:
    """Return the path to `mark` in a JSON value; None if it is not in it."""
    if value is mark:
        return ""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in items:
        path = _find(each, mark)
        if path is not None:
            return f".{name}{path}"
    return None


def difference(one: Any, other: Any) -> str | None:
    """Return the path to the first difference of two values (empty if they differ themselves), or None if they are equal.

    Models and dataclasses are compared by class and fields, lists and tuples by their items; numbers that are no number
    are equal.
    """
    if one is other:
        return None
    names: list[str] | None = None
    if isinstance(one, BaseModel):
        names = [
            *type(one).model_fields,
            *(one.model_extra or {}),
            *(getattr(other, "model_extra", None) or {}),
        ]
    elif is_dataclass(one):
        names = [field.name for field in dataclass_fields(one)]
    if names is not None:
        if type(one) is not type(other):
            return ""
        return _first_difference(
            (name, getattr(one, name, None), getattr(other, name, None)) for name in names
        )
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return ""
        return _first_difference((str(name), value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return ""
        return _first_difference((str(at), *pair) for at, pair in enumerate(zip(one, other, strict=True)))
    if getattr(type(one), "__eq__", None) is _IDENTITY:
        return None if type(one) is type(other) else ""
    if one == other and isinstance(one, bool) == isinstance(other, bool):
        return None
    return None if one != one and other != other else ""


def _first_difference(pairs: Any) -> str | None:
    for name, one, other in pairs:
        path = difference(one, other)
        if path is not None:
            return f".{name}{path}"
    return None


CODECS: dict[Hashable, TypeCodec] = {}
"""Codecs by type; types that are equal but have their members in another order have codecs of their own."""


def type_codec(kind: Any) -> TypeCodec:
    """Return the codec of a type, which may be any annotation; it is made once."""
    key = kind if isinstance(kind, type) and not get_args(kind) else _key(kind)
    try:
        found = CODECS.get(key)
    except TypeError:
        # An annotation that cannot be hashed. The codec keeps it alive, so that its identity stays its own.
        key = id(kind)
        found = CODECS.get(key)
    if found is None:
        found = CODECS[key] = TypeCodec(kind)
    return found


def as_json_text(value: object) -> str:
    """Return a value of a class as JSON, for a record in a store.

    :raises ConfigError: if it cannot be written, or what is written would not read back equal.
    """
    return type_codec(type(value)).write_json(value).decode()


def from_json_text(kind: type[Value], text: str) -> Value:
    """Return the value of a class that `as_json_text` has written.

    :raises pydantic.ValidationError: if the text is not of the class.
    """
    value: Value = type_codec(kind).read_json(text.encode())
    return value


def _key(kind: Any) -> Hashable:
    """Return a key that differs for types which are equal, but not the same: `A | B` and `B | A`, `1` and `True`."""
    arguments = get_args(kind)
    if not arguments:
        return (type(kind), kind)
    return (get_origin(kind), tuple(_key(each) for each in arguments))


__all__ = [
    "CODECS",
    "TypeCodec",
    "as_json_text",
    "difference",
    "from_json_text",
    "require_finite",
    "type_codec",
]
