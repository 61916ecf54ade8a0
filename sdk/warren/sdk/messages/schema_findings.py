"""Findings about a type: whether what pydantic writes of its values reads back equal, decided by its core schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, NamedTuple
from uuid import UUID

from warren.sdk.messages.timestamps import rfc3339

CoreSchema = Mapping[str, Any]

_TIMES: Final = frozenset(("date", "time", "datetime", "timedelta"))
_PLAIN: Final = frozenset(
    ("none", "bool", "int", "str", "decimal", "uuid", "url", "multi-host-url", "complex", "missing-sentinel")
)
"""Types of nodes whose values are read back as they were written, whatever the value."""
_WRAPPERS: Final = frozenset(
    ("nullable", "default", "custom-error", "set", "frozenset", "list", "definitions")
)
"""Types of nodes that are read back if what they contain is."""
_MUTABLE: Final = frozenset(("list", "dict", "set", "any", "typed-dict"))
_CLASSES: Final = frozenset(("model", "dataclass"))
_DEFAULTS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "bool": bool,
    "int": int,
    "str": str,
    "float": (float, int),
    "bytes": bytes,
    "list": list,
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "enum": Enum,
    "decimal": Decimal,
    "uuid": UUID,
    "date": date,
    "datetime": datetime,
    "time": time,
    "timedelta": timedelta,
}
"""Classes of the defaults that fit the types of nodes: pydantic does not validate defaults."""
_KEYS: Final = frozenset(("str", "int", "uuid", "date", "time", "datetime", "decimal"))
"""Types of dictionary keys that are read back from text."""
_JSON_FORMS: Final = {
    "none": "null",
    "bool": "boolean",
    "int": "number",
    "str": "string",
    "list": "array",
    "dict": "object",
    "model": "object",
    "dataclass": "object",
    "typed-dict": "object",
}
"""JSON forms of the members of a union that can be told apart by their form alone."""


class Findings(NamedTuple):
    """Result of `examine`."""

    faults: tuple[str, ...]
    """Reasons why no value of the type reads back, or why a field never does; each names the field and the remedy."""
    certain: bool
    """True if every value that is written reads back equal; otherwise each value is checked when it is written."""
    strict: bool
    """True if a part of the type is strict: it reads JSON, but not Python objects that were made from MessagePack."""
    floats: bool
    """True if a part of the type may be a float, which may be infinite or not a number."""
    mutable: bool
    """True if a part of the type can change after its validation, so that its values may be of other types."""
    classes: tuple[type, ...]
    """Classes inside the type. Of an instance of a subclass, pydantic writes the fields of the class only."""


class _Settings(NamedTuple):
    """Configuration of pydantic that applies to a part of a type."""

    strict: bool = False
    by_alias: bool = True
    by_name: bool = False
    symmetric_bytes: bool = True
    symmetric_times: bool = True
    inf_nan: str = "constants"
    own_serializer: bool = False
    """True inside a field with a serialiser of the program, which replaces those of the types in it."""

    def within(self, config: Mapping[str, Any]) -> _Settings:
        """Return the settings in a model with this core configuration."""
        by_name = config.get("validate_by_name", config.get("populate_by_name", False))
        return _Settings(
            bool(config.get("strict", False)),
            config.get("validate_by_alias", True) is not False,
            bool(by_name),
            config.get("ser_json_bytes", "utf8") == config.get("val_json_bytes", "utf8"),
            config.get("ser_json_temporal", "iso8601") == "iso8601",
            config.get("ser_json_inf_nan", "constants"),
            self.own_serializer,
        )


class _Examination:
    """One walk through a core schema."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.certain = True
        self.strict = False
        self.floats = False
        self.mutable = False
        self.classes: list[type] = []
        self._definitions: dict[str, CoreSchema] = {}
        self._seen: set[str] = set()

    def walk(self, schema: CoreSchema, path: str, settings: _Settings) -> None:
        """Examine a node of the schema and all below it.

        :param path: names of the fields that lead to it, each with a dot before it.
        """
        kind: str = schema["type"]
        self.strict = self.strict or bool(schema.get("strict", settings.strict))
        self.mutable = self.mutable or kind in _MUTABLE or (kind in _CLASSES and path != "")
        written = schema.get("serialization")
        if written is not None and written.get("function") is not rfc3339:
            self.certain = False
            if _is_secret(written):
                self._add_fault(
                    settings,
                    f"{_name(path)}is a secret, of which pydantic writes asterisks: send it as str or bytes, or give it a"
                    " field_serializer that returns get_secret_value()",
                )
            elif written["type"] in ("function-plain", "function-wrap"):
                settings = settings._replace(own_serializer=True)
        if kind in _PLAIN:
            pass
        elif kind in _TIMES:
            self.certain = self.certain and settings.symmetric_times
        elif kind == "float":
            self.floats = True
            self.certain = self.certain and settings.inf_nan in ("constants", "strings")
            if settings.inf_nan == "strings" and schema.get("strict", settings.strict):
                self.certain = False
        elif kind == "bytes":
            self.certain = self.certain and settings.symmetric_bytes
        elif kind in _WRAPPERS:
            self._examine_wrapper(schema, path, settings)
        elif kind == "definition-ref":
            self._follow(schema["schema_ref"], path, settings)
        elif kind == "dict":
            self._examine_dict(schema, path, settings)
        elif kind == "tuple":
            for item in schema["items_schema"]:
                self.walk(item, path, settings)
        elif kind in ("model", "dataclass", "typed-dict"):
            self._examine_fields(schema, path, settings)
        elif kind in ("literal", "enum"):
            self._examine_values(schema)
        elif kind == "union":
            self._examine_union(schema, path, settings)
        elif kind == "tagged-union":
            for choice in schema["choices"].values():
                if isinstance(choice, Mapping):
                    self.walk(choice, path, settings)
        elif kind == "generator":
            self._add_fault(
                settings, f"{_name(path)}is an iterator, which is empty after it was written: use list[...]"
            )
        elif kind == "json":
            self._add_fault(
                settings,
                f"{_name(path)}is pydantic's Json, which is read from a text and not written as one: use the type inside",
            )
        else:
            # Functions of users, values of any type, classes that pydantic does not know: only the value can tell.
            self.certain = False
            self.floats = True
            for inner in _inner_schemas(schema):
                self.walk(inner, path, settings)

    def _examine_wrapper(self, schema: CoreSchema, path: str, settings: _Settings) -> None:
        if schema["type"] == "definitions":
            self._definitions.update({each["ref"]: each for each in schema["definitions"]})
        if schema["type"] == "default" and "default" in schema:
            self.certain = self.certain and _fits(schema["default"], schema["schema"])
        inner = schema.get("schema", schema.get("items_schema"))
        if inner is None:
            # A list without a type of its items.
            self.certain = False
            self.floats = True
        else:
            self.walk(inner, path, settings)

    def _follow(self, ref: str, path: str, settings: _Settings) -> None:
        if ref not in self._seen:
            self._seen.add(ref)
            self.walk(self._definitions[ref], path, settings)

    def _examine_dict(self, schema: CoreSchema, path: str, settings: _Settings) -> None:
        keys, values = schema.get("keys_schema"), schema.get("values_schema")
        if keys is None or values is None:
            self.certain = False
            self.floats = True
            return
        if keys["type"] not in _KEYS:
            self.certain = False
        self.walk(keys, path, settings)
        self.walk(values, path, settings)

    def _examine_values(self, schema: CoreSchema) -> None:
        """Examine an enumeration or a literal."""
        values = schema.get("expected", schema.get("members", ()))
        for value in values:
            plain = value.value if schema["type"] == "enum" else value
            # A float may be written as an integer, and other values may be written as text.
            if not isinstance(plain, str | int) or (
                schema["type"] == "literal" and type(plain) not in (str, int, bool)
            ):
                self.certain = False

    def _examine_union(self, schema: CoreSchema, path: str, settings: _Settings) -> None:
        forms = set()
        for choice in schema["choices"]:
            member = choice[0] if isinstance(choice, tuple) else choice
            self.walk(member, path, settings)
            while member["type"] == "definition-ref":
                member = self._definitions[member["schema_ref"]]
            form = _JSON_FORMS.get(member["type"])
            if form is None or form in forms:
                # Which member is read depends on the value.
                self.certain = False
            forms.add(form)

    def _examine_fields(self, schema: CoreSchema, path: str, settings: _Settings) -> None:
        """Examine the fields of a model, a dataclass or a typed dictionary."""
        inner = settings.within(schema["config"]) if "config" in schema else settings
        if path and isinstance(schema.get("cls"), type) and schema["type"] != "typed-dict":
            self.classes.append(schema["cls"])
        if schema["type"] == "typed-dict":
            fields = schema
        else:
            fields = schema["schema"]
            if fields["type"] not in ("model-fields", "dataclass-args"):
                # The model has validators, or it is a root model.
                self.certain = (
                    self.certain
                    and bool(schema.get("root_model"))
                    and not fields["type"].startswith("function")
                )
                while fields["type"].startswith("function"):
                    fields = fields["schema"]
                if fields["type"] not in ("model-fields", "dataclass-args"):
                    self.walk(fields, path, inner)
                    return
        if schema.get("custom_init") or schema.get("post_init"):
            self.certain = False
        extra = fields.get("extra_behavior", schema.get("config", {}).get("extra_fields_behavior", "ignore"))
        self.certain = self.certain and extra != "allow"
        computed = [each["property_name"] for each in fields.get("computed_fields", ())]
        if computed and extra == "forbid":
            self.faults.append(
                f"{_name(f'{path}.{computed[0]}')}is computed and written, but its class forbids fields that it does not"
                " know (extra='forbid'): make it a property, or ignore unknown fields"
            )
        for name, field in _named_fields(fields):
            self._examine_field(field, f"{path}.{name}", name, inner)
            self.walk(field["schema"], f"{path}.{name}", inner)

    def _examine_field(self, field: CoreSchema, path: str, name: str, settings: _Settings) -> None:
        if field.get("serialization_exclude") or field.get("init_only"):
            what = "exclude=True" if field.get("serialization_exclude") else "InitVar"
            self.faults.append(
                f"{_name(path)}is not written ({what}): make it a private attribute, or leave it out"
            )
            return
        if field.get("serialization_exclude_if") is not None or field.get("init") is False:
            self.certain = False
        written = field.get("serialization_alias", name)
        if written not in _names_that_are_read(field, name, settings):
            self.faults.append(
                f"{_name(path)}is written as {written!r}, and not read by that name: give it one alias for both"
                " (Field(alias=...)), or validation_alias=AliasChoices(...) with both names"
            )

    def _add_fault(self, settings: _Settings, fault: str) -> None:
        """Note a fault of what pydantic writes of a type, unless the program writes it itself."""
        if not settings.own_serializer:
            self.faults.append(fault)


def examine(schema: CoreSchema) -> Findings:
    """Return what the core schema of a type says about writing its values and reading them back."""
    walk = _Examination()
    walk.walk(schema, "", _Settings())
    return Findings(
        tuple(walk.faults), walk.certain, walk.strict, walk.floats, walk.mutable, tuple(walk.classes)
    )


def _fits(default: object, schema: CoreSchema) -> bool:
    """Return whether a default is surely of the type that the field has."""
    kind = schema["type"]
    if kind == "nullable":
        return default is None or _fits(default, schema["schema"])
    if kind == "literal":
        return default in schema["expected"]
    expected = _DEFAULTS.get(kind)
    if expected is None or not isinstance(default, expected):
        return False
    # The items of a default are not examined.
    return not isinstance(default, list | dict | tuple | set | frozenset) or not default


def _is_secret(written: CoreSchema) -> bool:
    function = written.get("function")
    name = getattr(function, "__qualname__", "")
    return getattr(function, "__module__", "") == "pydantic.types" and "secret" in name.lower()


def _name(path: str) -> str:
    return f"{path[1:]} " if path else "it "


def _named_fields(schema: CoreSchema) -> Iterator[tuple[str, CoreSchema]]:
    fields = schema["fields"]
    if isinstance(fields, Mapping):
        yield from fields.items()
    else:
        for field in fields:
            yield field["name"], field


def _names_that_are_read(field: CoreSchema, name: str, settings: _Settings) -> set[str]:
    alias = field.get("validation_alias")
    if alias is None:
        return {name}
    found = {name} if settings.by_name else set()
    if settings.by_alias:
        if isinstance(alias, str):
            found.add(alias)
        else:
            paths = [alias] if alias and not isinstance(alias[0], list) else alias
            found.update(path[0] for path in paths if len(path) == 1)
    return found


def _inner_schemas(schema: CoreSchema) -> Iterator[CoreSchema]:
    """Yield the schemas inside a node of a type that is not treated by itself."""
    for name in ("schema", "json_schema", "lax_schema", "arguments_schema"):
        if isinstance(schema.get(name), Mapping):
            yield schema[name]
    yield from (step for step in schema.get("steps", ()) if isinstance(step, Mapping))


__all__ = ["Findings", "examine"]
