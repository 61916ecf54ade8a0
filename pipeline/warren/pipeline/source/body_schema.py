"""Message bodies as columns: Spark types derived from a pydantic model."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence, Set
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from warren.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def body_as(model: type[BaseModel], column: str = "body") -> Column:
    """Return a column expression that parses a JSON body into a struct with the model's fields, or into an array or map
    for a `RootModel` of one.

    Spark parses the body itself, without Python, by `from_json` with the schema of `json_type`. A body that is not such
    JSON, or a field that does not fit, becomes null; nothing is validated.

    :param column: name of the column with the body, of type binary or string
    :raises PipelineError: if the model contains itself, which no Spark type can represent
    """
    from pyspark.sql.functions import col, from_json

    kind: Any = json_type(model)
    return from_json(col(column).cast("string"), kind)


def json_type(model: type[BaseModel]) -> DataType:
    """Return the Spark type that holds the model's JSON form.

    int becomes long, float double, Decimal decimal(38,18), datetime timestamp, date date, a list, set or tuple an
    array, a dict a map, and a model a struct whose fields have their JSON names. Everything else becomes a string:
    types that JSON writes as strings (str, UUID, time, bytes), and types without one Spark type (Any, unions), for
    which the string holds the JSON.

    :raises PipelineError: if the model contains itself
    """
    return spark_type(model, ())


def spark_type(kind: Any, enclosing: tuple[type, ...]) -> DataType:
    """Return the Spark type for the Python type annotation `kind`; string for a type without an equivalent.

    :param enclosing: models that contain this annotation, to detect a model that contains itself
    """
    from pydantic import BaseModel
    from pyspark.sql.types import StringType

    kind = unwrap_annotations(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return common_type([each for each in arguments if each is not type(None)], enclosing)
    if origin is Literal:
        return common_type([type(value) for value in arguments], enclosing)
    base = origin or kind
    if not isinstance(base, type):
        return StringType()
    if issubclass(base, BaseModel):
        return struct_type(base, enclosing)
    if issubclass(base, Enum):
        return common_type([type(member.value) for member in base], enclosing)
    return scalar_type(base) or container_type(base, arguments, enclosing) or StringType()


def unwrap_annotations(kind: Any) -> Any:
    """Return the type annotation `kind` without the `Annotated`, `NewType` and type aliases around it."""
    while True:
        if typing.get_origin(kind) is Annotated:
            kind = typing.get_args(kind)[0]
        elif isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        else:
            return kind


def common_type(kinds: Sequence[Any], enclosing: tuple[type, ...]) -> DataType:
    """Return the Spark type that the annotations `kinds` share, such as those of a union; string if their types differ.

    :param enclosing: models that contain the annotations, to detect a model that contains itself
    """
    from pyspark.sql.types import StringType

    found = [spark_type(kind, enclosing) for kind in kinds]
    return found[0] if found and all(each == found[0] for each in found) else StringType()


def scalar_type(kind: type) -> DataType | None:
    """Return the Spark type for a scalar Python type, such as long for int; None for other types."""
    from pyspark.sql.types import BooleanType, DateType, DecimalType, DoubleType, LongType, TimestampType

    # A bool is an int, and a datetime a date: the order matters.
    for python, spark in (
        (bool, BooleanType()),
        (int, LongType()),
        (float, DoubleType()),
        (Decimal, DecimalType(38, 18)),
        (datetime, TimestampType()),
        (date, DateType()),
    ):
        if issubclass(kind, python):
            return spark
    return None


def container_type(kind: type, arguments: tuple[Any, ...], enclosing: tuple[type, ...]) -> DataType | None:
    """Return the Spark type for a Python collection class (list, set, tuple, dict, ...); None for other classes.

    :param arguments: type arguments, such as the type of a list's elements
    :param enclosing: models that contain this annotation, to detect a model that contains itself
    """
    from pyspark.sql.types import ArrayType, MapType, StringType

    if issubclass(kind, (str, bytes)):
        return None
    if issubclass(kind, Mapping):
        return MapType(StringType(), spark_type(arguments[1] if len(arguments) == 2 else Any, enclosing))
    if issubclass(kind, (Sequence, Set)):
        return ArrayType(common_type([each for each in arguments if each is not Ellipsis], enclosing))
    return None


def struct_type(model: type[BaseModel], enclosing: tuple[type, ...]) -> DataType:
    """Return the Spark struct for a model, or the type for the root of a `RootModel`.

    :param enclosing: models that contain this one
    :raises PipelineError: if the model contains itself
    """
    from pydantic import RootModel
    from pyspark.sql.types import StructField, StructType

    if model in enclosing:
        raise PipelineError(f"{model.__name__} contains itself, which no type of Spark can")
    inner = (*enclosing, model)
    fields = model.model_fields
    if issubclass(model, RootModel):
        return spark_type(fields["root"].annotation, inner)
    return StructType(
        [
            StructField(field.serialization_alias or field.alias or name, spark_type(field.annotation, inner))
            for name, field in fields.items()
        ]
    )
