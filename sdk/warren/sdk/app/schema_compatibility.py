"""Compatibility of two JSON Schemas: whether a reader accepts every value that a writer may send."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from decimal import Decimal
from math import ceil, floor, inf
from typing import Any, Final, NamedTuple

LIMITS: Final = (
    "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "minItems",
    "maxItems", "minProperties", "maxProperties", "pattern",
)  # fmt: skip
"""Keywords of a schema that restrict values, apart from `format`."""
SIZES: Final = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"))
"""Keywords of the smallest and the largest number of characters, items or properties."""
UNCHECKED_FORMATS: Final = frozenset({"binary", "password"})
"""Formats that pydantic uses as a description only: it accepts each text."""

ACCEPTED_NAMES: Final = "x-accepted-names"
"""Keyword of a field in a schema of what is read: all names under which the field is read, if there is more than one."""
ACCEPTED_PATHS: Final = "x-accepted-paths"
"""Keyword of a field in a schema of what is read: paths within the object at which the field is read, too."""

Schema = Mapping[str, Any]
Difference = tuple[str, str]
"""Path of a field, and why the reader does not accept it."""


def differences(written: Schema, writer: Schema, read: Schema, reader: Schema) -> list[Difference]:
    """Return the reasons for which a reader refuses values of a writer, by the path of their fields.

    Readers ignore unknown fields, as Warren's do, unless their schema forbids them.

    :param written: schema of the values that are sent.
    :param writer: document in which references of `written` are found.
    :param read: schema of the values that are accepted.
    :param reader: document in which references of `read` are found.
    """
    return list(dict.fromkeys(_Comparison(writer, reader).of(written, read, "", ())))


def field_paths(schema: Schema, document: Schema) -> dict[str, str]:
    """Return the fields of a schema, also nested ones, each with a short text for its type."""
    return dict(_paths(schema, document, "", ()))


def type_text(schema: Schema, document: Schema) -> str:
    """Return a short text for the type of a field: `string (date-time)`, `array of Line`, `integer or null`."""
    if "$ref" in schema:
        return _definition(schema)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(dict.fromkeys(type_text(each, document) for each in schema[union]))
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " or ".join(json.dumps(each) for each in schema["enum"])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array" and "prefixItems" in schema:
        return f"array of ({', '.join(type_text(each, document) for each in schema['prefixItems'])})"
    if kind == "array":
        return f"array of {type_text(schema['items'], document)}" if schema.get("items") else "array"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {type_text(schema['additionalProperties'], document)}"
    return f"{kind} ({schema['format']})" if "format" in schema else str(kind)


def resolve(schema: Schema, document: Schema) -> Schema:
    """Return the schema that a reference names; a schema that is no reference itself."""
    seen = 0
    while "$ref" in schema and seen < 100:
        target: Any = document
        for step in str(schema["$ref"]).removeprefix("#/").split("/"):
            target = target.get(step.replace("~1", "/").replace("~0", "~"), {})
        schema, seen = target, seen + 1
    return schema


class _Comparison:
    def __init__(self, writer: Schema, reader: Schema) -> None:
        self._writer = writer
        self._reader = reader

    def of(self, written: Schema, read: Schema, path: str, seen: tuple[Any, ...]) -> Iterator[Difference]:
        pair = (written.get("$ref"), read.get("$ref"))
        if pair != (None, None) and None not in pair:
            if pair in seen:
                return
            seen = (*seen, pair)
        written, read = resolve(written, self._writer), resolve(read, self._reader)
        wide, accepted = _branches(written), _branches(read)
        if len(accepted) > 1:
            # The members of an enum may be accepted by different members of the reader's union.
            wide = [each for branch in wide for each in _single_values(branch)]
        if len(wide) > 1 or len(accepted) > 1:
            for branch in wide:
                if all(list(self.of(branch, each, path, seen)) for each in accepted):
                    nearest = [each for each in accepted if _is_like(branch, each)] or accepted
                    if len(nearest) == 1:
                        yield from self.of(branch, nearest[0], path, seen)
                    else:
                        sent, known = type_text(branch, self._writer), type_text(read, self._reader)
                        yield path, f"it may be {sent}, and readers of it accept {known}"
            return
        yield from self._values(written, read, path)
        if _types(written) == _types(read) == {"object"}:
            yield from self._objects(written, read, path, seen)
        if _types(written) == {"array"}:
            yield from self._arrays(written, read, path, seen)

    def _values(self, written: Schema, read: Schema, path: str) -> Iterator[Difference]:
        accepted, sent = _values_of(read), _values_of(written)
        if accepted is not None and sent is None:
            every: dict[object, list[Any]] = {"boolean": [False, True], "null": [None]}
            sent = every.get(written.get("type"))
        if sent is not None:
            if missing := [each for each in sent if not _is_accepted(each, read)]:
                known = type_text(read, self._reader) if accepted is None else _listed(accepted)
                yield path, f"it may be {_listed(missing)}, and only {known} is accepted"
            return
        if accepted is not None:
            wide = type_text(written, self._writer)
            yield path, f"it may be any {wide}, and only {_listed(accepted)} is accepted"
            return
        kinds, types = _types(written), _types(read)
        if types and (not kinds or not all(_is_known(kind, types) for kind in kinds)):
            wide, narrow = type_text(written, self._writer), type_text(read, self._reader)
            yield path, f"it is sent as {wide}, and {narrow} is accepted"
            return
        for was, limit in _exceeded_limits(written, read):
            yield path, f"it is sent with {was}, and {limit} is required"

    def _arrays(
        self, written: Schema, read: Schema, path: str, seen: tuple[Any, ...]
    ) -> Iterator[Difference]:
        """Compare the items of an array by their positions (`prefixItems` of a tuple), then those after them."""
        sent, known = written.get("prefixItems", ()), read.get("prefixItems", ())
        for index in range(max(len(sent), len(known))):
            item = sent[index] if index < len(sent) else written.get("items")
            accepted = known[index] if index < len(known) else read.get("items")
            if isinstance(item, Mapping) and isinstance(accepted, Mapping):
                yield from self.of(item, accepted, f"{path}[{index}]", seen)
        # A tuple ends with its last position, unless it has `items`.
        if isinstance(read.get("items"), Mapping) and ("items" in written or not sent):
            yield from self.of(written.get("items") or {}, read["items"], f"{path}[]", seen)

    def _objects(
        self, written: Schema, read: Schema, path: str, seen: tuple[Any, ...]
    ) -> Iterator[Difference]:
        sent, known = written.get("properties", {}), read.get("properties", {})
        always, required = set(written.get("required", ())), set(read.get("required", ()))
        taken: set[str] = set()
        for name, field in {**known, **{each: {} for each in required - known.keys()}}.items():
            names, place = _names(name, field), _join(path, name)
            found = names | {str(each[0]) for each in field.get(ACCEPTED_PATHS, ())}
            taken |= found
            sources = {
                other: _names(other, each) for other, each in sent.items() if _names(other, each) & found
            }
            if name in required:
                yield from self._required(place, sources, found, always)
            for other, sent_as in sources.items():
                if sent_as & names:
                    yield from self.of(sent[other], field, place, seen)
        for name, schema in sent.items():
            if _names(name, schema) <= taken:
                continue
            if isinstance(read.get("additionalProperties"), Mapping):
                yield from self.of(schema, read["additionalProperties"], _join(path, name), seen)
            elif read.get("additionalProperties") is False:
                yield _join(path, name), "it is sent, and unknown fields are refused"
        values, accepted = written.get("additionalProperties"), read.get("additionalProperties")
        if isinstance(values, Mapping) and isinstance(accepted, Mapping):
            yield from self.of(values, accepted, _join(path, "*"), seen)

    def _required(
        self, place: str, sources: Mapping[str, frozenset[str]], found: Set[str], always: Set[str]
    ) -> Iterator[Difference]:
        """Compare a field that the reader requires with the fields in which a writer may send it.

        :param sources: names under which each of these fields may be sent.
        :param found: names under which the reader finds the field.
        :param always: fields that the writer never leaves out.
        """
        sure = [names for name, names in sources.items() if name in always]
        if not sources:
            yield place, "it is required, and is not sent"
        elif not sure:
            yield place, "it is required, and may be left out"
        elif not any(names <= found for names in sure):
            others = " or ".join(sorted(sure[0] - found))
            yield place, f"it is required, and may be sent as {others}"


def _paths(schema: Schema, document: Schema, path: str, seen: tuple[Any, ...]) -> Iterator[tuple[str, str]]:
    reference = schema.get("$ref")
    if reference in seen:
        return
    seen = (*seen, reference) if reference else seen
    schema = resolve(schema, document)
    for branch in _branches(schema):
        if branch is not schema:
            yield from _paths(branch, document, path, seen)
    for name, field in schema.get("properties", {}).items():
        inner = _join(path, name)
        for other in sorted(_names(name, field) - {name}):
            yield _join(path, other), f"another name of {name}"
        optional = "" if name in schema.get("required", ()) else "optional "
        limits = [f"{keyword} {field[keyword]}" for keyword in LIMITS if keyword in field]
        yield inner, f"{optional}{', '.join([type_text(field, document), *limits])}"
        yield from _paths(field, document, inner, seen)
    if isinstance(schema.get("items"), Mapping):
        yield from _paths(schema["items"], document, f"{path}[]", seen)


def _branches(schema: Schema) -> list[Schema]:
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return list(schema[union])
    kinds = schema.get("type")
    return [{**schema, "type": kind} for kind in kinds] if isinstance(kinds, list) else [schema]


def _is_like(written: Schema, read: Schema) -> bool:
    """Return whether a member of the reader's union is the same definition as one of the writer's, or of its type."""
    if "$ref" in written or "$ref" in read:
        return "$ref" in written and "$ref" in read and _definition(written) == _definition(read)
    return _types(written) == _types(read)


def _definition(schema: Schema) -> str:
    """Return the name of the definition that a reference names, which is the same for what is read and what is sent."""
    name = str(schema["$ref"]).rpartition("/")[2]
    return name.removesuffix("-Input").removesuffix("-Output")


def _names(name: str, schema: Schema) -> frozenset[str]:
    """Return the names under which a field is read."""
    return frozenset(schema.get(ACCEPTED_NAMES, (name,)))


def _single_values(schema: Schema) -> list[Schema]:
    """Return a schema for each value of an enum; the schema itself if it is none."""
    if "enum" not in schema:
        return [schema]
    rest = {key: value for key, value in schema.items() if key != "enum"}
    return [{**rest, "const": value} for value in schema["enum"]]


def _is_accepted(value: Any, read: Schema) -> bool:
    """Return whether a schema accepts a value."""
    accepted = _values_of(read)
    if accepted is not None:
        return any(each == value and isinstance(each, bool) == isinstance(value, bool) for each in accepted)
    own = _schema_of(value)
    if _types(read) and not all(_is_known(kind, _types(read)) for kind in _types(own)):
        return False
    if isinstance(value, str) and "pattern" in read:
        own["pattern"] = read["pattern"] if re.search(read["pattern"], value) else None
    return not list(_exceeded_limits({**own, "format": read.get("format")}, read))


def _schema_of(value: Any) -> dict[str, Any]:
    """Return a schema with the type and the limits of a value."""
    match value:
        case None:
            return {"type": "null"}
        case bool():
            return {"type": "boolean"}
        case int() | float():
            kind = "integer" if value == int(value) else "number"
            return {"type": kind, "minimum": value, "maximum": value, "multipleOf": value or None}
        case str():
            return {"type": "string", "minLength": len(value), "maxLength": len(value)}
        case _:
            return {}


def _exceeded_limits(written: Schema, read: Schema) -> Iterator[tuple[str, str]]:
    """Yield the limits of a reader to which a writer does not keep: the writer's limit, and the reader's, as texts."""
    whole = _types(written) == {"integer"}
    for keywords, sign in ((("minimum", "exclusiveMinimum"), 1), (("maximum", "exclusiveMaximum"), -1)):
        limit, sent = _bound(read, keywords, sign, whole), _bound(written, keywords, sign, whole)
        if limit is not None and (sent is None or sent.value < limit.value):
            yield sent.text if sent is not None else f"{limit.text.split()[0]} none", limit.text
    for least, most in SIZES:
        if written.get(least, 0) < read.get(least, 0):
            yield f"{least} {written.get(least, 'none')}", f"{least} {read[least]}"
        if most in read and written.get(most, inf) > read[most]:
            yield f"{most} {written.get(most, 'none')}", f"{most} {read[most]}"
    factor, step = read.get("multipleOf"), written.get("multipleOf") or (1 if whole else None)
    if factor and (step is None or Decimal(str(step)) % Decimal(str(factor))):
        yield f"multipleOf {written.get('multipleOf', 'none')}", f"multipleOf {factor}"
    if "pattern" in read and written.get("pattern") != read["pattern"]:
        yield f"pattern {written.get('pattern', 'none')}", f"pattern {read['pattern']}"
    form, sent_form = read.get("format"), written.get("format")
    # A UUID of one version is a UUID.
    if form and form not in UNCHECKED_FORMATS and form not in (sent_form, str(sent_form).rstrip("1345678")):
        yield f"format {sent_form or 'none'}", f"format {form}"


class _Bound(NamedTuple):
    """Smallest number that a schema accepts; of an upper bound the negative.

    :ivar value: the number, and 1 if only greater ones are accepted.
    :ivar text: keyword and value in the schema.
    """

    value: tuple[Decimal, int]
    text: str


def _bound(schema: Schema, keywords: tuple[str, str], sign: int, whole: bool) -> _Bound | None:
    """Return the bound that applies if a schema has an inclusive and an exclusive one; None if it has neither.

    :param keywords: the inclusive and the exclusive one.
    :param sign: 1 for a lower bound, -1 for an upper one.
    :param whole: True if only whole numbers are sent: above 0 they are the same as from 1.
    """
    found = []
    for exclusive, keyword in enumerate(keywords):
        if isinstance(schema.get(keyword), int | float):
            number = sign * Decimal(str(schema[keyword]))
            value = (number, exclusive)
            if whole and number.is_finite():
                value = (Decimal(floor(number) + 1 if exclusive else ceil(number)), 0)
            found.append(_Bound(value, f"{keyword} {schema[keyword]}"))
    return max(found, default=None)


def _types(schema: Schema) -> set[str]:
    kind = schema.get("type")
    return {kind} if isinstance(kind, str) else set()


def _is_known(kind: str, known: set[str]) -> bool:
    return kind in known or (kind == "integer" and "number" in known)


def _values_of(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return list(schema["enum"]) if "enum" in schema else None


def _listed(values: list[Any]) -> str:
    return " or ".join(json.dumps(value) for value in values)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
