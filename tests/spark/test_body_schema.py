"""Bodies as columns: Spark reads the JSON of a model with the model's types."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, RootModel
from pyspark.sql import SparkSession

from tests.spark.conftest import Audit, Message
from warren.pipeline import body_as
from warren.pipeline.errors import PipelineError
from warren.pipeline.source.body_schema import json_type
from warren.sdk import Event

Cents = NewType("Cents", int)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Line(BaseModel):
    sku: str
    count: int
    price: Decimal


class OrderPlaced(Event, exchange="orders", key="placed"):
    order_id: UUID
    placed_at: datetime
    day: date
    lines: list[Line]
    paid: bool = False
    weight: float | None = None
    total: Annotated[Cents, Field(ge=0)]
    tags: dict[str, int]
    colour: Colour
    level: Level
    kind: Literal["a", "b"]
    pair: tuple[int, ...]
    either: int | str
    anything: Any
    within: timedelta
    customer: str = Field(alias="customerName")


class Tree(BaseModel):
    children: list[Tree]


class Lines(RootModel[list[Line]]):
    pass


def test_a_model_becomes_a_spark_schema() -> None:
    assert json_type(OrderPlaced).simpleString() == (
        "struct<order_id:string,placed_at:timestamp,day:date,"
        "lines:array<struct<sku:string,count:bigint,price:decimal(38,18)>>,paid:boolean,weight:double,total:bigint,"
        "tags:map<string,bigint>,colour:string,level:bigint,kind:string,pair:array<bigint>,either:string,"
        "anything:string,within:string,customerName:string>"
    )
    assert json_type(Lines).simpleString() == "array<struct<sku:string,count:bigint,price:decimal(38,18)>>"
    with pytest.raises(PipelineError, match="Tree contains itself"):
        json_type(Tree)


def test_a_body_is_parsed_into_the_columns_of_its_model(spark: SparkSession, audit: Audit) -> None:
    order = OrderPlaced(
        order_id=UUID(int=1),
        placed_at=datetime(2026, 1, 31, 12, 0, 1, 500_000, tzinfo=UTC),
        day=date(2026, 1, 31),
        lines=[Line(sku="x", count=2, price=Decimal("9.95"))],
        total=Cents(1990),
        tags={"a": 1},
        colour=Colour.RED,
        level=Level.HIGH,
        kind="b",
        pair=(1, 2),
        either="text",
        anything={"deep": [1]},
        within=timedelta(minutes=5),
        customerName="Ann",
    )
    audit.publish(
        [Message(order.model_dump_json(by_alias=True).encode()), Message(b"no JSON"), Message(b'{"paid": 7}')]
    )
    frame = spark.read.format("amqp").options(url=audit.url, queue=audit.name).load()
    rows = frame.orderBy("offset").select(body_as(OrderPlaced).alias("order")).select("order.*").collect()
    columns = rows[0].asDict(recursive=True)
    assert columns.pop("placed_at").astimezone(UTC) == order.placed_at
    assert json.loads(columns.pop("anything")) == {"deep": [1]}
    assert columns == {
        "order_id": str(UUID(int=1)),
        "day": date(2026, 1, 31),
        "lines": [{"sku": "x", "count": 2, "price": Decimal("9.95")}],
        "paid": False,
        "weight": None,
        "total": 1990,
        "tags": {"a": 1},
        "colour": "red",
        "level": 3,
        "kind": "b",
        "pair": [1, 2],
        "either": "text",
        "within": "PT5M",
        "customerName": "Ann",
    }  # fmt: skip
    assert not any(value is not None for row in rows[1:] for value in row), "what does not fit is null"
