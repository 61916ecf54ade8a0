"""Core schemas of pydantic with which an infinite float is noticed when it is written, in nested types, too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from pydantic_core import SchemaSerializer, SchemaValidator

_CONFIGURED: Final = ("model", "dataclass", "typed-dict")


def tightened(schema: Any) -> Any:
    """Return a copy of a core schema in which infinite floats are written as `Infinity`, not as null.

    A class that says itself how they are written (`ser_json_inf_nan`) keeps that.
    """
    if isinstance(schema, dict):
        copy = {name: value if name == "metadata" else tightened(value) for name, value in schema.items()}
        if schema.get("type") in _CONFIGURED:
            copy["config"] = {"ser_json_inf_nan": "constants"} | schema.get("config", {})
        return copy
    if isinstance(schema, list):
        return [tightened(value) for value in schema]
    if type(schema) is tuple:
        return tuple(tightened(value) for value in schema)
    return schema


def build(schema: Any) -> tuple[SchemaValidator, SchemaSerializer]:
    """Return validator and serialiser of a tightened schema, without those that pydantic has made for the classes in it."""
    config: Any = {"ser_json_inf_nan": "constants"} | _config(schema)
    makers: tuple[Any, Any] = (SchemaValidator, SchemaSerializer)
    try:
        validator, serializer = (maker(schema, config, _use_prebuilt=False) for maker in makers)
    except TypeError:
        with _incomplete(schema):
            validator, serializer = (maker(schema, config) for maker in makers)
    return validator, serializer


@contextlib.contextmanager
def _incomplete(schema: Any) -> Iterator[None]:
    """Mark the classes in a core schema as incomplete for a while.

    Versions of pydantic from 2.11 on that do not know `_use_prebuilt` take the validators and serialisers of complete
    classes instead of those in the schema.
    """
    complete = [each for each in set(_classes(schema)) if each.__dict__.get("__pydantic_complete__") is True]
    for each in complete:
        each.__pydantic_complete__ = False
    try:
        yield
    finally:
        for each in complete:
            each.__pydantic_complete__ = True


def _classes(schema: Any) -> Iterator[Any]:
    if isinstance(schema, dict):
        if schema.get("type") in _CONFIGURED and "cls" in schema:
            yield schema["cls"]
        for name, value in schema.items():
            if name != "metadata":
                yield from _classes(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from _classes(value)


def _config(schema: Any) -> dict[str, Any]:
    """Return the configuration of the outermost class of a core schema."""
    definitions = {each["ref"]: each for each in schema.get("definitions", ())}
    while "config" not in schema:
        if schema["type"] == "definition-ref":
            schema = definitions[schema["schema_ref"]]
        elif "schema" in schema:
            schema = schema["schema"]
        else:
            return {}
    config: dict[str, Any] = schema["config"]
    return config


__all__ = ["build", "tightened"]
