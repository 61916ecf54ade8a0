"""Compatibility of two JSON Schemas: whether a reader accepts every value that a writer may send."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

LIMITS: Final[tuple[tuple[str, Callable[[Any, Any], bool]], ...]] = (
    ("minimum", lambda written, read: written is not None and written >= read),
    ("exclusiveMinimum", lambda written, read: written is not None and written >= read),
    ("minLength", lambda written, read: (written or 0) >= read),
    ("minItems", lambda written, read: (written or 0) >= read),
    ("maximum", lambda written, read: written is not None and written <= read),
    ("exclusiveMaximum", lambda written, read: written is not None and written <= read),
    ("maxLength", lambda written, read: written is not None and written <= read),
    ("maxItems", lambda written, read: written is not None and written <= read),
    ("pattern", lambda written, read: bool(written == read)),
    ("format", lambda written, read: bool(written == read)),
    ("multipleOf", lambda written, read: written is not None and written % read == 0),
)
"""Keywords of the reader's schema that restrict a value, each with a function that returns whether the writer's value of the
keyword keeps to it."""

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
        return str(schema["$ref"]).rpartition("/")[2]
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
        if accepted is not None:
            if sent is None:
                yield (
                    path,
                    f"it may be any {type_text(written, self._writer)}, and only {_listed(accepted)} is accepted",
                )
            elif missing := [each for each in sent if each not in accepted]:
                yield path, f"it may be {_listed(missing)}, and only {_listed(accepted)} is accepted"
            return
        kinds, known = _types(written), _types(read)
        if known and (not kinds or not all(_is_known(kind, known) for kind in kinds)):
            wide, narrow = type_text(written, self._writer), type_text(read, self._reader)
            yield path, f"it is sent as {wide}, and {narrow} is accepted"
            return
        if sent is not None:
            return
        for keyword, keeps in LIMITS:
            if keyword in read and not keeps(written.get(keyword), read[keyword]):
                limit = f"{keyword} {read[keyword]}"
                was = written.get(keyword, "none")
                yield path, f"it is sent with {keyword} {was}, and {limit} is required"

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
        always = set(written.get("required", ()))
        for name in read.get("required", ()):
            if name not in sent:
                yield _join(path, name), "it is required, and is not sent"
            elif name not in always:
                yield _join(path, name), "it is required, and may be left out"
        for name, schema in sent.items():
            if name in known:
                yield from self.of(schema, known[name], _join(path, name), seen)
            elif isinstance(read.get("additionalProperties"), Mapping):
                yield from self.of(schema, read["additionalProperties"], _join(path, name), seen)
            elif read.get("additionalProperties") is False:
                yield _join(path, name), "it is sent, and unknown fields are refused"
        values, accepted = written.get("additionalProperties"), read.get("additionalProperties")
        if isinstance(values, Mapping) and isinstance(accepted, Mapping):
            yield from self.of(values, accepted, _join(path, "*"), seen)


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
        optional = "" if name in schema.get("required", ()) else "optional "
        limits = [
            f"{keyword} {field[keyword]}" for keyword, _ in LIMITS if keyword in field and keyword != "format"
        ]
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
        return written.get("$ref") == read.get("$ref")
    return _types(written) == _types(read)


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
