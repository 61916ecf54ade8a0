"""Changes between two AsyncAPI documents: each kind of change, and whom it breaks."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import (
    UUID4,
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    computed_field,
)

from tests.support.tiers import examples
from warren.sdk import App, Command, Event, Queue, Request
from warren.sdk.extend import asyncapi_document, asyncapi_page, compare_asyncapi


class Name(BaseModel):
    first: str


class Line(BaseModel):
    sku: str
    count: int = 1


def model(
    name: str, base: type[Any] = Event, /, fields: dict[str, Any] | None = None, **keywords: Any
) -> Any:
    """Return a message class with these fields; a value that is a tuple is a type and its default."""
    names = {"exchange": "orders", "key": "order.placed"} if base is Event else {"queue": "work"}
    made: dict[str, Any] = {"__annotations__": {}, "__module__": __name__}
    for field, kind in (fields or {"order": str, "total": int}).items():
        made["__annotations__"][field] = kind[0] if isinstance(kind, tuple) else kind
        if isinstance(kind, tuple):
            made[field] = kind[1]
    return types.new_class(name, (base,), {**names, **keywords}, lambda namespace: namespace.update(made))


def handling(kind: Any, queue: str | Queue | None = "billing", **options: Any) -> dict[str, Any]:
    app = App("memory://")

    async def handler(message: Any) -> Any: ...

    app.handle(kind, queue=queue if issubclass(kind, Event) else None, **options)(handler)
    return asyncapi_document(app, title="t", version="1")


def sending(kind: Any) -> dict[str, Any]:
    app = App("memory://")
    app.publishes(kind)
    return asyncapi_document(app, title="t", version="1")


PLACED = model("Placed")
FIELDS = {"order": str, "total": int}
OPTIONAL = {**FIELDS, "note": (str, "")}
MORE = {**FIELDS, "note": str}


def changes(
    kind: Any, describe: Callable[[Any], dict[str, Any]], before: Any = PLACED
) -> list[tuple[Any, str, str]]:
    return [
        (each.breaks, each.place, each.text) for each in compare_asyncapi(describe(before), describe(kind))
    ]


@pytest.mark.parametrize(
    ("before", "after", "writers", "readers"),
    [
        (FIELDS, FIELDS, None, None),
        (FIELDS, OPTIONAL, (None, "new field"), (None, "new field")),
        (FIELDS, MORE, ("writers", "it is required, and is not sent"), (None, "new field")),
        (MORE, FIELDS, (None, "removed field"), ("readers", "it is required, and is not sent")),
        (OPTIONAL, FIELDS, (None, "removed field"), (None, "removed field")),
        (OPTIONAL, MORE, ("writers", "it is required, and may be left out"), (None, "optional string is now string")),
        (MORE, OPTIONAL, (None, "is now optional"), ("readers", "it is required, and may be left out")),
        (
            {"a": int},
            {"a": str},
            ("writers", "it is sent as integer, and string is accepted"),
            ("readers", "it is sent as string, and integer is accepted"),
        ),
        ({"a": int}, {"a": float}, (None, "is now number"), ("readers", "it is sent as number, and integer is")),
        ({"a": int}, {"a": int | None}, (None, "integer or null"), ("readers", "it is sent as null")),
        ({"a": int | str}, {"a": int}, ("writers", "it is sent as string"), (None, "is now integer")),
        (
            {"a": Literal["x", "y"]},
            {"a": Literal["x"]},
            ("writers", 'it may be "y", and only "x" is accepted'),
            (None, "is now"),
        ),
        (
            {"a": Literal["x"]},
            {"a": Literal["x", "y"]},
            (None, "is now"),
            ("readers", 'it may be "y", and only "x" is accepted'),
        ),
        ({"a": str}, {"a": Literal["x"]}, ("writers", "it may be any string"), (None, "is now")),
        (
            {"a": int},
            {"a": Annotated[int, Field(ge=1)]},
            ("writers", "it is sent with minimum none, and minimum 1 is required"),
            (None, "is now integer, minimum 1"),
        ),
        (
            {"a": Annotated[str, Field(max_length=9)]},
            {"a": Annotated[str, Field(max_length=5)]},
            ("writers", "it is sent with maxLength 9, and maxLength 5 is required"),
            (None, "maxLength 5"),
        ),
        ({"a": list[int]}, {"a": list[str]}, ("writers", "sent as integer"), ("readers", "sent as string")),
        ({"a": dict[str, int]}, {"a": dict[str, float]}, (None, "number"), ("readers", "sent as number")),
        ({"a": list[Line]}, {"a": list[Line]}, None, None),
        ({"a": tuple[int, int]}, {"a": tuple[int, float]}, (None, "is now"), ("readers", "sent as number")),
        ({"a": tuple[str, str]}, {"a": tuple[str, int]}, ("writers", "sent as string"), ("readers", "sent as integer")),
        ({"a": list[str]}, {"a": tuple[int, ...]}, ("writers", "sent as string"), ("readers", "sent as integer")),
        ({"a": Name}, {"a": dict[str, int]}, ("writers", "sent as string"), ("readers", "it is required")),
    ],
)  # fmt: skip
def test_a_change_of_a_field(before: Any, after: Any, writers: Any, readers: Any) -> None:
    was, now = model("Placed", fields=before), model("Placed", fields=after)
    for describe, expected in ((handling, writers), (sending, readers)):
        found = changes(now, describe, was)
        if expected is None:
            assert found == []
        else:
            ((breaks, place, text),) = found
            assert (breaks, place.partition(".")[0]) == (expected[0], "placed")
            assert expected[1] in text


class ColouredLine(Line):
    colour: str


def test_a_field_of_a_nested_model_has_its_path() -> None:
    was, now = (model("Placed", fields={"lines": list[kind]}) for kind in (Line, ColouredLine))  # type: ignore[valid-type]
    assert changes(now, handling, was) == [
        ("writers", "placed.lines[].colour", "it is required, and is not sent")
    ]


def test_a_renamed_message() -> None:
    renamed, known = model("OrderPlaced"), model("OrderPlaced", aliases=["Placed"])
    ((breaks, place, text),) = [each for each in changes(renamed, handling) if each[0]]
    assert (breaks, place) == ("writers", "placed")
    assert "renamed to order_placed without an alias" in text
    assert changes(known, handling) == [
        (None, "placed", "renamed to order_placed, which has the former name as an alias")
    ]
    ((breaks, _, text),) = [each for each in changes(known, sending) if each[0]]
    assert (breaks, text) == (
        "readers", "renamed to order_placed: readers that know only the former type do not read it",
    )  # fmt: skip
    without = changes(renamed, handling, known)
    assert [each[0] for each in without] == ["writers"] * 2
    assert "the alias 'Placed' was removed" in without[0][2]


def test_a_removed_and_a_new_message() -> None:
    empty = asyncapi_document(App("memory://"), title="t", version="1")
    removed = compare_asyncapi(handling(PLACED), empty)
    assert [(each.breaks, each.text) for each in removed] == [
        ("writers", "removed: the App no longer handles it from billing")
    ]
    removed = compare_asyncapi(sending(PLACED), empty)
    assert [(each.breaks, each.text) for each in removed] == [
        ("readers", "removed: the App no longer sends it to orders/order.placed")
    ]
    assert [each.breaks for each in compare_asyncapi(empty, handling(PLACED))] == [None]


def test_another_address() -> None:
    moved = model("Placed", key="order.done")
    assert changes(moved, handling) == [
        ("writers", "placed", "moved from orders/order.placed to orders/order.done")
    ]
    assert changes(moved, sending) == [
        ("readers", "placed", "moved from orders/order.placed to orders/order.done")
    ]
    wide = compare_asyncapi(handling(PLACED), handling(PLACED, keys=["order.*"]))
    assert [(each.breaks, each.text) for each in wide] == [(None, "also published to orders/order.*")]
    for keys in ("#", "order.#", "#.placed", "order.placed.#"):
        wide = compare_asyncapi(handling(PLACED), handling(PLACED, keys=[keys]))
        assert [each.breaks for each in wide] == [None], keys
    narrow = compare_asyncapi(handling(PLACED, keys=["order.#"]), handling(PLACED, keys=["order.*"]))
    assert [each.breaks for each in narrow] == ["writers"]
    queue = compare_asyncapi(handling(PLACED), handling(PLACED, "billing2"))
    assert [(each.breaks, each.place) for each in queue] == [(None, "placed")]
    was, now = model("Work", Command), model("Work", Command, queue="other")
    assert changes(now, handling, was) == [("writers", "work", "moved from queue work to queue other")]


def test_another_kind_of_queue_and_content_type() -> None:
    classic = compare_asyncapi(handling(PLACED), handling(PLACED, Queue("billing", type="classic")))
    assert {each.place for each in classic} == {"queue billing"}
    assert {each.breaks for each in classic} == {"writers"}
    packed = model("Placed", content_type="application/msgpack")
    assert [each[0] for each in changes(packed, sending)] == ["readers"]
    assert [each[0] for each in changes(packed, handling)] == [None]


class Quote(BaseModel):
    price: int


class Offer(BaseModel):
    price: int
    until: str


def test_the_reply_of_a_request_is_written_by_its_server() -> None:
    was, now = model("Ask", Request[Offer]), model("Ask", Request[Quote])
    assert changes(now, handling, was) == [
        ("readers", "ask (reply).until", "it is required, and is not sent")
    ]
    assert changes(was, handling, now) == [(None, "ask (reply).until", "new field")]


def test_a_document_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="the old document is not an AsyncAPI 3 document"):
        compare_asyncapi({"openapi": "3.1.0"}, sending(PLACED))


class Node(BaseModel):
    one: Node | None = None
    two: Node | None = None
    three: list[Node] = []
    four: dict[str, Node] = {}


def test_a_page_shows_the_fields_of_a_model_that_contains_itself_once() -> None:
    page = asyncapi_page(handling(model("Placed", fields={"tree": Node})))
    assert page.count("<code>one</code>") == 1
    assert "&quot;one&quot;: null" in page
    assert "&quot;three&quot;: []" in page


def test_a_dict_reads_a_model_whose_fields_have_the_type_of_its_values() -> None:
    was, now = model("Placed", fields={"a": Name}), model("Placed", fields={"a": dict[str, str]})
    assert {breaks for breaks, _, _ in changes(now, handling, was)} == {None}


# -- What a handler accepts is not what its class would send.


class Choices(Event, exchange="orders", key="order.placed", type="placed"):
    order_id: str = Field(validation_alias=AliasChoices("order_id", "order"))
    total: int


class Nested(Event, exchange="orders", key="order.placed", type="placed"):
    number: str = Field(validation_alias=AliasPath("order", "number"))
    total: int


class ByName(Event, exchange="orders", key="order.placed", type="placed"):
    model_config = ConfigDict(validate_by_name=True)
    order: str = Field(validation_alias="orderId")
    total: int


class ByAlias(Event, exchange="orders", key="order.placed", type="placed"):
    order: str = Field(validation_alias="orderId")
    total: int


class OnlyNew(Event, exchange="orders", key="order.placed", type="placed"):
    order_id: str
    total: int


class Strict(Event, exchange="orders", key="order.placed", type="placed"):
    model_config = ConfigDict(extra="forbid")
    order_id: str
    total: int
    order: str = ""


class Computed(Event, exchange="orders", key="order.placed", type="placed"):
    order: str
    total: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return f"{self.order} for {self.total}"


class Amount(Event, exchange="orders", key="order.placed", type="placed"):
    order: str
    total: Decimal


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (PLACED, Choices, []),
        (PLACED, ByAlias, ["placed.orderId: it is required, and is not sent"]),
        (PLACED, ByName, []),
        (PLACED, Nested, []),
        (OnlyNew, Nested, ["placed.number: it is required, and is not sent"]),
        (Choices, OnlyNew, ["placed.order_id: it is required, and may be sent as order"]),
        (Choices, Choices, []),
        (Choices, Strict, ["placed.order_id: it is required, and may be sent as order"]),
        (OnlyNew, Strict, []),
        (PLACED, Computed, []),
        (Computed, PLACED, []),
        (PLACED, Amount, []),
        (
            Amount,
            PLACED,
            [
                "placed.total: it is sent as number, and integer is accepted",
                "placed.total: it is sent as string, and integer is accepted",
            ],
        ),
    ],
)
def test_a_handler_is_described_by_what_it_accepts(before: Any, after: Any, expected: list[str]) -> None:
    found = [f"{place}: {text}" for breaks, place, text in changes(after, handling, before) if breaks]
    assert found == expected


def test_a_renaming_is_shown_as_one() -> None:
    assert (None, "placed.order", "string is now another name of order_id") in changes(
        Choices, handling, PLACED
    )


def test_what_the_app_sends_is_described_by_what_it_writes() -> None:
    assert changes(Computed, sending) == [(None, "placed.label", "new field")]
    assert changes(PLACED, sending, Computed) == [
        ("readers", "placed.label", "it is required, and is not sent")
    ]


def test_a_message_that_is_read_in_another_form_than_it_is_sent_is_described_twice() -> None:
    app = App("memory://")

    async def handler(message: Any) -> Any: ...

    app.handle(Computed, queue="billing")(handler)
    app.publishes(Computed)
    document = asyncapi_document(app, title="t", version="1")
    messages = document["components"]["messages"]
    fields = {
        each["title"]: set(
            document["components"]["schemas"][each["payload"]["$ref"].rpartition("/")[2]]["properties"]
        )
        for each in messages.values()
    }
    assert fields == {
        "Computed (received)": {"order", "total"},
        "Computed (sent)": {"order", "total", "label"},
    }
    assert {each["name"] for each in messages.values()} == {"placed"}
    assert compare_asyncapi(document, document) == []
    assert compare_asyncapi(handling(Computed), document)[0].text.startswith("new: the App sends it")


# -- Limits by their meaning


def limited(kind: Any, **limits: Any) -> Any:
    return Annotated[kind, Field(**limits)]


@pytest.mark.parametrize(
    ("before", "after", "breaks"),
    [
        (limited(int, gt=0), limited(int, ge=0), False),
        (limited(int, gt=0), limited(int, ge=1), False),
        (limited(int, ge=1), limited(int, gt=0), False),
        (limited(int, ge=0), limited(int, gt=0), True),
        (limited(int, le=9), limited(int, lt=10), False),
        (limited(int, lt=10), limited(float, lt=9.5), False),
        (limited(float, gt=0), limited(float, ge=0), False),
        (limited(float, ge=0), limited(float, gt=0), True),
        (limited(float, ge=1), limited(float, gt=0), False),
        (limited(float, lt=1), limited(float, le=1), False),
        (limited(float, le=1), limited(float, lt=1), True),
        (limited(int, ge=3), limited(float, gt=2.5), False),
        (limited(int, multiple_of=4), limited(int, multiple_of=2), False),
        (limited(int, multiple_of=2), limited(int, multiple_of=4), True),
        (limited(float, multiple_of=0.3), limited(float, multiple_of=0.1), False),
        (int, limited(int, multiple_of=1), False),
        (limited(str, min_length=2), limited(str, min_length=1), False),
        (str, limited(str, min_length=1), True),
        (str, limited(str, min_length=0), False),
        (str, limited(str, max_length=5), True),
        (limited(list[int], max_length=5), limited(list[int], max_length=5), False),
        (limited(dict[str, int], max_length=5), limited(dict[str, int], max_length=4), True),
        (dict[str, int], limited(dict[str, int], min_length=1), True),
        (limited(str, pattern="^a$"), limited(str, pattern="^a$"), False),
        (limited(str, pattern="^a$"), limited(str, pattern="^b$"), True),
        (Literal["a", "b"], limited(str, max_length=1), False),
        (Literal["a", "bb"], limited(str, max_length=1), True),
        (Literal["a", "b"], limited(str, pattern="^[ab]$"), False),
        (Literal["a", "c"], limited(str, pattern="^[ab]$"), True),
        (Literal[1, 2], limited(int, gt=0), False),
        (Literal[0, 2], limited(int, gt=0), True),
        (Literal["a", 1], str | int, False),
        (Literal["a", 1, None], str | int, True),
        (Literal["a"], Literal["a", "b"], False),
        (Literal[True], bool, False),
        (bool, Literal[True, False], False),
        (bool, Literal[True], True),
        (Literal[1], Literal[True], True),
        (UUID4, UUID, False),
        (UUID, UUID4, True),
        (str, SecretStr, False),
        (str, UUID, True),
    ],
)  # fmt: skip
def test_limits_are_compared_by_their_meaning(before: Any, after: Any, breaks: bool) -> None:
    was, now = (model("Placed", fields={"a": kind}) for kind in (before, after))
    found = [text for broken, _, text in changes(now, handling, was) if broken]
    assert bool(found) == breaks, found


BOUNDS = st.dictionaries(st.sampled_from(["gt", "ge", "lt", "le"]), st.integers(-3, 3), max_size=3)


@settings(max_examples=examples(150))
@given(BOUNDS, BOUNDS)
def test_a_bound_breaks_writers_if_it_refuses_a_number_that_was_accepted(
    before: dict[str, int], after: dict[str, int]
) -> None:
    was, now = (model("Placed", fields={"a": limited(int, **limits)}) for limits in (before, after))

    def accepted(kind: Any) -> set[int]:
        found = set()
        for number in range(-8, 9):
            with contextlib.suppress(ValidationError):
                found.add(kind(a=number).a)
        return found

    assume(accepted(was))
    breaks = any(broken for broken, _, _ in changes(now, handling, was))
    assert breaks == bool(accepted(was) - accepted(now))
