"""Messages read back equal to what was written, or are refused, for all types that pydantic has."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from types import GenericAlias
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PlainSerializer,
    RootModel,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    computed_field,
    create_model,
    field_serializer,
)

from warren.sdk import App, ConfigError, Event, Request
from warren.sdk.extend import type_codec
from warren.sdk.messages.type_codec import difference

NAIVE = datetime(2026, 1, 1, 12)
AWARE = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
INFINITY = float("inf")
T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    GREEN = 2


class Item(BaseModel):
    at: datetime
    weight: float = 0.0


@dataclasses.dataclass
class Row:
    at: datetime
    weight: float = 0.0


class Node(BaseModel):
    at: datetime
    children: list[Node] = []


class Box(BaseModel, Generic[T]):
    content: T


class Narrow(BaseModel):
    a: int


class Wide(BaseModel):
    a: int
    b: int = 0


class Sent(Event, exchange="e", key="k"):
    """Base of the classes that tests make."""


def written(kind: type[BaseModel], **values: object) -> bytes:
    return type_codec(kind).write_json(kind(**values))


# -- properties

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TIMES = st.datetimes(
    min_value=datetime(2, 1, 1),
    max_value=datetime(9998, 12, 31),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=8))]),
)
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (bool, st.booleans()),
    (str, st.text()),
    (float, st.floats()),
    (bytes, st.binary(max_size=8)),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (UUID, st.uuids()),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (datetime, TIMES | st.just(NAIVE)),
    (AwareDatetime, TIMES),
    (Color, st.sampled_from(Color)),
    (Literal["a", 1, True], st.sampled_from(["a", 1, True])),
    (PurePosixPath, st.just(PurePosixPath("/a/b"))),
    (
        Any,
        st.one_of(
            st.none(), st.integers(), FINITE, st.text(), st.just((1, 2)), st.just(NAIVE), st.just(AWARE)
        ),
    ),
    (SecretStr, st.text().map(SecretStr)),
    (SecretBytes, st.binary(max_size=4).map(SecretBytes)),
    (Annotated[int, Field(gt=0)], st.integers(min_value=1)),
    (Annotated[Decimal, PlainSerializer(lambda value: f"{value:.1f}")], st.decimals(-9, 9)),
    (Item, st.builds(Item, at=TIMES | st.just(NAIVE), weight=st.floats())),
    (Row, st.builds(Row, at=TIMES | st.just(NAIVE), weight=st.floats())),
    (
        Node,
        st.builds(Node, at=TIMES, children=st.lists(st.builds(Node, at=TIMES | st.just(NAIVE)), max_size=2)),
    ),
    (Box[datetime], st.builds(Box[datetime], content=TIMES | st.just(NAIVE))),
    (Wide, st.builds(Wide, a=st.integers(), b=st.integers())),
    (Narrow, st.builds(Narrow, a=st.integers())),
]


def extended(
    inner: st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    """Return types made of other types, each with the strategy of its values."""
    return st.one_of(
        inner.map(lambda one: (GenericAlias(list, (one[0],)), st.lists(one[1], max_size=2))),
        inner.map(lambda one: (one[0] | None, st.none() | one[1])),
        inner.map(
            lambda one: (GenericAlias(dict, (str, one[0])), st.dictionaries(st.text(), one[1], max_size=2))
        ),
        inner.map(lambda one: (GenericAlias(tuple, (one[0], ...)), st.lists(one[1], max_size=2).map(tuple))),
        st.tuples(inner, inner).map(lambda two: (two[0][0] | two[1][0], two[0][1] | two[1][1])),
        st.sampled_from(
            [leaf for leaf in LEAVES if leaf[0] in (int, bool, UUID, date, Decimal, Color, bytes)]
        ).map(
            lambda key: (
                GenericAlias(dict, (key[0], int)),
                st.dictionaries(key[1], st.integers(), max_size=2),
            )
        ),
    )


TYPES = st.recursive(st.sampled_from(LEAVES), extended, max_leaves=3)


@pytest.mark.parametrize("content_type", ["application/json", "application/msgpack"])
@pytest.mark.parametrize("strict", [False, True], ids=["lax", "strict"])
@given(data=st.data())
def test_what_is_written_is_read_back_equal_or_refused(
    data: st.DataObject, content_type: str, strict: bool
) -> None:
    annotation, values = data.draw(TYPES)
    config = ConfigDict(strict=strict)
    try:
        base = create_model("Base", __base__=Event)
        kind: Any = type(
            "Sent",
            (base,),
            {"__annotations__": {"value": annotation}, "__module__": __name__, "model_config": config},
            exchange="e",
            key="k",
        )
    except ConfigError:
        return
    value = data.draw(values)
    try:
        message = kind.model_validate({"value": value})
    except ValueError:
        return
    codec = type_codec(kind)
    try:
        body = (
            codec.write_json(message) if content_type == "application/json" else codec.write_msgpack(message)
        )
    except ConfigError:
        return
    read = codec.read_json(body) if content_type == "application/json" else codec.read_msgpack(body)
    assert difference(message, read) is None, (annotation, message, body, read)


# -- types that cannot be written


def refused(kind: type[Event]) -> str:
    """Return the error of an App that is to publish a class; `write_json` raises the same."""
    with pytest.raises(ConfigError) as caught:
        App("memory://").publishes(kind)
    with pytest.raises(ConfigError) as again:
        type_codec(kind).write_json(kind.model_construct())
    assert str(again.value) == str(caught.value)
    return str(caught.value)


def test_a_class_with_a_secret_is_refused() -> None:
    class Connect(Event, exchange="e", key="k"):
        password: SecretStr

    assert "password is a secret, of which pydantic writes asterisks: send it as str" in refused(Connect)
    # Who only handles it may hide the password from its own logs.
    assert type_codec(Connect).read_json(b'{"password":"hunter2"}').password == SecretStr("hunter2")


def test_a_secret_with_a_serializer_is_sent() -> None:
    class Connect(Event, exchange="e", key="k"):
        password: SecretStr

        @field_serializer("password", when_used="json")
        def reveal(self, password: SecretStr) -> str:
            return password.get_secret_value()

    body = written(Connect, password=SecretStr("hunter2"))
    assert type_codec(Connect).read_json(body).password == SecretStr("hunter2")


def test_a_class_with_an_excluded_field_is_refused_also_inside_another_one() -> None:
    class Inner(BaseModel):
        note: str = Field("", exclude=True)

    class Noted(Event, exchange="e", key="k"):
        inner: Inner

    assert "inner.note is not written (exclude=True): make it a private attribute" in refused(Noted)


@pytest.mark.parametrize(
    "field",
    [
        Field(serialization_alias="b"),
        Field(validation_alias="b"),
        Field(validation_alias=AliasPath("b", 0), serialization_alias="b"),
        Field(validation_alias=AliasChoices("b", "c")),
    ],
)
def test_a_field_that_is_written_by_a_name_by_which_it_is_not_read_is_refused(field: Any) -> None:
    kind = create_model("Aliased", __base__=Sent, a=(int, field))
    assert re.search("a is written as '[ab]', and not read by that name: give it one alias", refused(kind))


@pytest.mark.parametrize(
    "field",
    [
        Field(alias="b"),
        Field(validation_alias=AliasChoices("a", "c")),
        Field(validation_alias=AliasChoices("c", "b"), serialization_alias="b"),
    ],
)
def test_a_field_that_is_written_by_a_name_by_which_it_is_read_is_accepted(field: Any) -> None:
    kind = create_model("Aliased", __base__=Sent, a=(int, field))
    codec = type_codec(kind)
    message = kind.model_validate({"a": 1, "b": 1})
    assert codec.read_json(codec.write_json(message)) == message


def test_a_computed_field_of_a_class_that_forbids_unknown_fields_is_refused() -> None:
    class Sum(Event, exchange="e", key="k", extra="forbid"):
        @computed_field  # type: ignore[prop-decorator]
        @property
        def total(self) -> int:
            return 1

    assert "total is computed and written, but its class forbids fields" in refused(Sum)


@pytest.mark.parametrize("annotation", [Json[int], list[Json[int]]])
def test_a_type_that_no_value_reads_back_is_refused(annotation: Any) -> None:
    assert "value is pydantic's Json" in refused(
        create_model("Parsed", __base__=Sent, value=(annotation, ...))
    )


def test_a_class_whose_fields_name_later_classes_is_examined_when_it_is_complete() -> None:
    class Early(Event, exchange="e", key="k"):
        late: Late

    class Late(BaseModel):
        at: datetime
        password: SecretStr

    App("memory://").publishes(Early)
    Early.model_rebuild(_types_namespace={"Late": Late})
    assert "late.password is a secret" in refused(Early)
    with pytest.raises(ValueError, match="Input should have timezone info"):
        Early.model_validate({"late": {"at": NAIVE, "password": "p"}})


def test_a_handler_whose_reply_cannot_be_read_back_is_refused() -> None:
    class Login(BaseModel):
        token: SecretStr

    class LogIn(Request[Login], queue="logins"):
        pass

    app = App("memory://")
    with pytest.raises(ConfigError, match="Login cannot be read back: token is a secret"):

        @app.handle(LogIn)
        async def log_in(request: LogIn) -> Login:
            return Login(token=SecretStr("t"))


# -- what is refused when a value is written


@pytest.mark.parametrize("value", [INFINITY, -INFINITY, float("nan")])
@pytest.mark.parametrize("nested", [False, True])
def test_an_infinite_number_is_refused(value: float, nested: bool) -> None:
    class Measured(Event, exchange="e", key="k"):
        weight: float = 0.0
        items: list[Item] = Field(default_factory=list)

    values: dict[str, object] = {"items": [Item(at=AWARE, weight=value)]} if nested else {"weight": value}
    name = r"items\.0\.weight" if nested else "weight"
    with pytest.raises(
        ConfigError, match=f"a Measured cannot be written: {name} is infinite or not a number"
    ):
        written(Measured, **values)


def test_an_infinite_number_is_sent_by_a_class_that_says_how() -> None:
    class Measured(Event, exchange="e", key="k", ser_json_inf_nan="strings"):
        weight: float

    codec = type_codec(Measured)
    assert codec.read_json(written(Measured, weight=INFINITY)).weight == INFINITY


def test_an_infinite_number_is_sent_as_messagepack() -> None:
    class Measured(Event, exchange="e", key="k", content_type="application/msgpack"):
        weight: float

    codec = type_codec(Measured)
    assert codec.read_msgpack(codec.write_msgpack(Measured(weight=INFINITY))).weight == INFINITY


@pytest.mark.parametrize(
    "make", [lambda: Item(at=NAIVE), lambda: Row(at=NAIVE), lambda: Node(at=AWARE, children=[Node(at=NAIVE)])]
)
def test_a_time_without_a_zone_inside_a_message_is_refused(make: Callable[[], Any]) -> None:
    value = make()
    kind = create_model("Sent", __base__=Event, value=(type(value), ...))
    with pytest.raises(ConfigError, match="a Sent cannot be written: value: the time has no time zone"):
        written(kind, value=value)
    with pytest.raises(ValueError, match="Input should have timezone info"):
        kind.model_validate({"value": TypeAdapter(type(value)).dump_python(value)})


def test_a_time_inside_a_nested_class_is_written_in_utc() -> None:
    class Sent(Event, exchange="e", key="k"):
        item: Item

    assert b'"at":"2026-01-01T10:00:00Z"' in written(Sent, item=Item(at=AWARE))
    # The nested class itself stays as it is.
    assert b"12:00:00+02:00" in Item(at=AWARE).model_dump_json().encode()


def test_an_instance_of_a_subclass_is_refused_if_its_fields_are_not_written() -> None:
    class Special(Narrow):
        b: int

    class Sent(Event, exchange="e", key="k"):
        value: Narrow

    with pytest.raises(ConfigError, match="a Sent is not read back as it was written: value changes"):
        written(Sent, value=Special(a=1, b=2))
    assert written(Sent, value=Narrow(a=1)) == b'{"value":{"a":1}}'


def test_a_member_of_a_union_that_reads_as_another_one_is_refused() -> None:
    class Sent(Event, exchange="e", key="k"):
        value: datetime | str

    codec = type_codec(Sent)
    assert codec.read_json(written(Sent, value="hello")).value == "hello"
    with pytest.raises(ConfigError, match="a Sent is not read back as it was written: value changes"):
        written(Sent, value="2026-01-01T12:00:00Z")


def test_a_default_of_another_type_is_refused() -> None:
    class Sent(Event, exchange="e", key="k"):
        count: int = None  # type: ignore[assignment]

    with pytest.raises(
        ConfigError, match="a Sent is written so that it cannot be read back: count: Input should be"
    ):
        written(Sent)


def test_a_list_that_was_changed_after_its_validation_is_refused() -> None:
    class Sent(Event, exchange="e", key="k"):
        counts: list[int] = Field(default_factory=list)

    message = Sent(counts=[1])
    message.counts.append("secret")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a Sent cannot be written: counts: ") as caught:
        type_codec(Sent).write_json(message)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 2**70),
        (datetime, datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))),
        (bytes, b"\xff"),
        (Any, "\ud800"),
    ],
)
def test_a_value_that_cannot_be_written_is_refused(annotation: Any, value: object) -> None:
    kind = create_model("Sent", __base__=Event, value=(annotation, ...))
    codec = type_codec(kind)
    with pytest.raises(ConfigError, match="a Sent cannot be written: "):
        codec.write_msgpack(kind.model_validate({"value": value}))
    if annotation is int:
        assert codec.read_json(codec.write_json(kind.model_validate({"value": value}))).value == value
    else:
        with pytest.raises(ConfigError, match="a Sent cannot be written: "):
            codec.write_json(kind.model_validate({"value": value}))


def test_types_that_are_equal_keep_the_order_of_their_members() -> None:
    body = b'{"a":1,"b":2}'
    assert type_codec(Narrow | Wide).read_json(b'{"a":1}') == Narrow(a=1)
    assert type(type_codec(Wide | Narrow).read_json(b'{"a":1}')) is Wide
    assert type(type_codec(list[Wide | Narrow]).read_json(b"[" + body + b"]")[0]) is Wide
    assert type_codec(Wide | Narrow) is type_codec(Wide | Narrow)


def test_a_root_model_reads_back() -> None:
    class Sent(Event, exchange="e", key="k"):
        value: RootModel[list[int]]

    codec = type_codec(Sent)
    assert codec.read_json(written(Sent, value=[1, 2])).value.root == [1, 2]
