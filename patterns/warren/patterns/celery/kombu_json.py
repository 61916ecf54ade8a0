"""JSON as kombu writes and reads it: values that JSON lacks, such as `Decimal` and `datetime`, are objects with the keys
`__type__` and `__value__` (kombu 5.3 and later)."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel

_TYPE: Final = "__type__"
_VALUE: Final = "__value__"

_READERS: Final[Mapping[str, Callable[[Any], object]]] = {
    "bytes": lambda value: value.encode(),
    "base64": base64.b64decode,
    "datetime": datetime.fromisoformat,
    "date": lambda value: datetime.fromisoformat(value).date(),
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda value: UUID(**value),
}


def dumps(value: object) -> bytes:
    """Encode a value as a Celery program does; pydantic models and dataclasses become objects.

    :raises TypeError: for a value that neither JSON nor kombu can represent.
    """
    return json.dumps(value, default=_encode).encode()


def loads(body: bytes) -> Any:
    """Decode a value with kombu's types.

    :raises ValueError: for content that is not JSON in UTF-8, or has a type that kombu does not define by itself.
    """
    try:
        return json.loads(body, object_hook=_decode)
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"a value with {_TYPE} cannot be read: {error}") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def is_encodable(value: object) -> bool:
    """Return whether `dumps` can encode the value."""
    try:
        dumps(value)
    except Exception:
        # Methods of the application's classes may raise anything.
        return False
    return True


def _encode(value: object) -> object:
    match value:
        case BaseModel():
            return value.model_dump(by_alias=True)
        case Enum():
            return value.value
        case datetime():
            return _marked("datetime", value.isoformat())
        case date():
            return _marked("date", value.isoformat())
        case time():
            return _marked("time", value.isoformat())
        case Decimal():
            return _marked("decimal", str(value))
        case UUID():
            return _marked("uuid", {"hex": value.hex})
        case bytes():
            try:
                return _marked("bytes", value.decode())
            except UnicodeDecodeError:
                return _marked("base64", base64.b64encode(value).decode())
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON for Celery")


def _marked(name: str, value: object) -> dict[str, object]:
    return {_TYPE: name, _VALUE: value}


def _decode(value: dict[str, Any]) -> object:
    if value.keys() != {_TYPE, _VALUE}:
        return value
    reader = _READERS.get(str(value[_TYPE]))
    if reader is None:
        raise ValueError(f"kombu has no type {value[_TYPE]!r}")
    return reader(value[_VALUE])


__all__ = ["dumps", "is_encodable", "loads"]
