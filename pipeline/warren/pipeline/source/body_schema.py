"""The body of a message as columns: what a pydantic model, which an application sends and receives, says about JSON."""

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
    """The JSON of a body as a struct with the model's fields, or as an array or map if it is a `RootModel` of one.

    Spark reads it, without Python: `from_json` with the schema of `json_type`. A body that is no such JSON, or a field
    that does not fit, is null; nothing is validated.

    :param column: binary or string
    :raises PipelineError: if the model contains itself, which no type of Spark can
    """
    from pyspark.sql.functions import col, from_json

    kind: Any = json_type(model)
    return from_json(col(column).cast("string"), kind)


def json_type(model: type[BaseModel]) -> DataType:
    """The type of Spark that holds what the model is in JSON.

    int is long, float double, Decimal decimal(38,18), datetime timestamp, date date, a list, set or tuple an array, a dict a
    map, a model a struct whose fields have their names in JSON. Everything else is a string: what is one in JSON (str, UUID,
    time, bytes), and what has no one type (Any, unions), whose JSON it holds.

    :raises PipelineError: if the model contains itself
    """
    return spark_type(model, ())


def spark_type(kind: Any, enclosing: tuple[type, ...]) -> DataType:
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
    """A type without what only annotates or names it."""
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
    """The type of each of them, if it is one."""
    from pyspark.sql.types import StringType

    found = [spark_type(kind, enclosing) for kind in kinds]
    return found[0] if found and all(each == found[0] for each in found) else StringType()


def scalar_type(kind: type) -> DataType | None:
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
    from pyspark.sql.types import ArrayType, MapType, StringType

    if issubclass(kind, (str, bytes)):
        return None
    if issubclass(kind, Mapping):
        return MapType(StringType(), spark_type(arguments[1] if len(arguments) == 2 else Any, enclosing))
    if issubclass(kind, (Sequence, Set)):
        return ArrayType(common_type([each for each in arguments if each is not Ellipsis], enclosing))
    return None


def struct_type(model: type[BaseModel], enclosing: tuple[type, ...]) -> DataType:
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
