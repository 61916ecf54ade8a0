"""Generator of JSON Schemas that also state the further names under which a field is read."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, AliasPath
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from warren.sdk.app.schema_compatibility import ACCEPTED_NAMES, ACCEPTED_PATHS


class FieldNamesGenerator(GenerateJsonSchema):
    """The generator of pydantic, with `x-accepted-names` and `x-accepted-paths` at each field that has several names.

    pydantic states only the first name of `AliasChoices`, and with `validate_by_name` only the alias.
    """

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return self._with_names(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return self._with_names(super().dataclass_schema(schema), schema["cls"])

    def _with_names(self, made: JsonSchemaValue, owner: Any) -> JsonSchemaValue:
        config = getattr(owner, "model_config", None) or getattr(owner, "__pydantic_config__", {})
        if self.mode != "validation" or not config.get("validate_by_alias", True):
            return made
        by_name = bool(config.get("validate_by_name") or config.get("populate_by_name"))
        fields: dict[str, FieldInfo] = getattr(owner, "__pydantic_fields__", {})
        for name, field in fields.items():
            names, paths = _alternatives(field)
            key = names[0] if names else name
            if field.validation_alias is None or key not in made.get("properties", {}):
                continue
            if by_name and name not in names:
                names.append(name)
            if names != [key]:
                made["properties"][key][ACCEPTED_NAMES] = names
            if paths:
                made["properties"][key][ACCEPTED_PATHS] = paths
        return made


def _alternatives(field: FieldInfo) -> tuple[list[str], list[list[str | int]]]:
    """Return the names and the longer paths at which a field with an alias is read, in the order in which they are tried."""
    alias = field.validation_alias
    match alias:
        case AliasChoices():
            paths = alias.convert_to_aliases()
        case AliasPath():
            paths = [alias.convert_to_aliases()]
        case _:
            paths = [] if alias is None else [[alias]]
    return [str(path[0]) for path in paths if len(path) == 1], [path for path in paths if len(path) > 1]


__all__ = ["FieldNamesGenerator"]
