"""Message classes: addresses and wire format. The frozen formats must never change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from pydantic import BaseModel, ValidationError

from warren.sdk import Binding, Command, ConfigError, Delivery, Event, Exchange, Queue, Request
from warren.sdk.consume.delivery import as_current_delivery
from warren.sdk.messages.codec import decode, encode
from warren.sdk.messages.message_ids import uuid7
from warren.sdk.publish.outgoing import Outgoing
from warren.wire import field_tables
from warren.wire.delivery_scanner import decode_content_header

NOW = 1_769_904_000.125  # 2026-02-01T00:00:00.125Z


class Address(BaseModel):
    city: str


class OrderPlaced(Event, exchange="orders", key="order.placed", audience=["billing"]):
    order_id: str
    total: Decimal
    placed_at: datetime
    gift: bool = False
    ship_to: Address | None = None


class CancelOrder(Command, queue="orders.cancel", type="shop.cancel"):
    order_id: str


class GetQuote(Request[Decimal], queue="quotes"):
    sku: str


def on_the_wire(outgoing: Outgoing) -> dict[str, object]:
    properties, table = decode_content_header(outgoing.header())
    return {
        "exchange": outgoing.exchange,
        "routing_key": outgoing.routing_key,
        "body": outgoing.body,
        "headers": field_tables.decode(table),
        **{name: value for name, value in properties.items() if name != "message_id"},
    }


def test_the_wire_form_of_an_event_is_frozen() -> None:
    order = OrderPlaced(
        order_id="42",
        total=Decimal("9.90"),
        placed_at=datetime(2026, 2, 1, 1, 30, tzinfo=timezone(timedelta(hours=1))),
        ship_to=Address(city="Zürich"),
    )
    assert on_the_wire(encode(order, now=NOW)) == {
        "exchange": "orders",
        "routing_key": "order.placed",
        "body": (
            '{"order_id":"42","total":"9.90","placed_at":"2026-02-01T00:30:00Z","gift":false,'
            '"ship_to":{"city":"Zürich"}}'
        ).encode(),
        "headers": {},
        "content_type": "application/json",
        "delivery_mode": 2,
        "type": "order_placed",
    }


def test_with_a_given_id_the_publish_time_is_in_a_header() -> None:
    outgoing = encode(CancelOrder(order_id="42"), now=NOW, message_id="cancel-42")
    assert on_the_wire(outgoing)["headers"] == {"warren-first-published": 1769904000125}


@pytest.mark.parametrize(
    ("message_id", "headers", "expected"),
    [
        (uuid7(1_769_904_000_125), {}, 1_769_904_000_125),
        (uuid7(1_769_904_000_125), {"warren-first-published": 1_700_000_000_000}, 1_700_000_000_000),
        ("cancel-42", {"warren-first-published": 1_700_000_000_000}, 1_700_000_000_000),
        ("cancel-42", {}, None),
        (str(UUID(int=4 << 76)), {}, None),
        ("ffffffff-ffff-7fff-8fff-ffffffffffff", {}, None),
        ("nothexno-here-7fff-8fff-ffffffffffff", {}, None),
        (None, {}, None),
    ],
    ids=[
        "in the id",
        "in both",
        "in the header",
        "nowhere",
        "an older UUID",
        "the last time",
        "no UUID",
        "no id",
    ],
)
def test_the_time_of_the_first_publish_is_in_a_header_or_in_the_id(
    message_id: str | None, headers: dict[str, int], expected: int | None
) -> None:
    properties = {} if message_id is None else {"message_id": message_id}
    first = Delivery(b"", "", "q", "q", False, headers, properties).first_published
    assert first == (None if expected is None else datetime.fromtimestamp(expected / 1000, UTC))


def test_the_wire_form_of_a_command_is_frozen() -> None:
    outgoing = encode(CancelOrder(order_id="42"), now=NOW, expiration=timedelta(milliseconds=1500.2))
    assert on_the_wire(outgoing) == {
        "exchange": "",
        "routing_key": "orders.cancel",
        "body": b'{"order_id":"42"}',
        "headers": {},
        "content_type": "application/json",
        "delivery_mode": 2,
        "expiration": "1501",
        "type": "shop.cancel",
    }


@pytest.mark.parametrize(
    ("body", "wire", "content_type"),
    [
        (b"\x00\xff", b"\x00\xff", "application/octet-stream"),
        ("Grüezi", "Grüezi".encode(), "text/plain; charset=utf-8"),
        (
            {"total": Decimal("1.10"), "at": datetime(2026, 2, 1, tzinfo=UTC)},
            b'{"total":"1.10","at":"2026-02-01T00:00:00Z"}',
            "application/json",
        ),
    ],
)
def test_bodies_without_a_class(body: object, wire: bytes, content_type: str) -> None:
    outgoing = encode(body, now=NOW, exchange="x", key="k")
    assert (outgoing.body, outgoing.properties["content_type"]) == (wire, content_type)
    assert "type" not in outgoing.properties


def test_a_message_id_is_a_uuid_of_version_7_that_carries_the_time() -> None:
    first, second = uuid7(1_769_904_000_125), uuid7(1_769_904_000_125)
    assert first[14] == second[14] == "7"
    assert first[19] in "89ab"
    assert first < second < uuid7(1_769_904_000_126)
    assert int(first.replace("-", "")[:12], 16) == 1_769_904_000_125


def test_ids_keep_their_order_when_a_millisecond_is_full_or_the_clock_steps_back() -> None:
    start = 4_000_000_000_000
    ids = [uuid7(start - (i > 5000)) for i in range(10_000)]
    assert ids == sorted(set(ids))


def delivered(body: bytes) -> Delivery:
    return Delivery(body, "orders", "order.placed", "billing", False, {}, {})


def test_unknown_fields_are_ignored() -> None:
    read = decode(CancelOrder, delivered(b'{"order_id":"1","since":"version 2"}'))
    assert read == CancelOrder(order_id="1")


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValidationError, match="timezone"):
        OrderPlaced(order_id="1", total=Decimal(1), placed_at=datetime(2026, 2, 1))


@pytest.mark.parametrize(
    ("name", "wire"),
    [("OrderPlaced", "order_placed"), ("HTTPFailed", "http_failed"), ("V2Order", "v2_order")],
)
def test_the_type_is_the_name_in_snake_case(name: str, wire: str) -> None:
    kind = type(name, (Command,), {}, queue="q")
    assert issubclass(kind, Command)
    assert kind.wire_type == wire


def test_an_event_declares_its_exchange_and_its_audience() -> None:
    assert OrderPlaced.required_topology() == [
        Exchange("orders"),
        Queue("billing"),
        Binding("orders", "billing", "order.placed"),
    ]


def test_a_family_of_events_shares_an_exchange() -> None:
    class Shop(Event, exchange="shop"):
        pass

    class Opened(Shop, key="shop.opened"):
        pass

    assert (Opened.wire_exchange, Opened.wire_key) == ("shop", "shop.opened")
    with pytest.raises(ConfigError, match="Shop has no address"):
        encode(Shop(), now=NOW)


def test_a_request_has_a_reply_type() -> None:
    assert GetQuote.reply_type() is Decimal
    assert GetQuote.required_topology() == [Queue("quotes")]


def test_a_message_without_address_is_refused() -> None:
    class Lost(Command):
        pass

    with pytest.raises(ConfigError, match=r"(?m)^Lost has no address: .*$"):
        encode(Lost(), now=NOW)
    with pytest.raises(ConfigError, match=r"(?m)^Lost has no queue: .*$"):
        Lost.required_topology()
    with pytest.raises(ConfigError, match=r"^a dict has no address"):
        encode({}, now=NOW)
    with pytest.raises(ConfigError, match="longer than 255 bytes"):
        encode(b"", now=NOW, key="ü" * 200)
    with pytest.raises(ConfigError, match="audience is a list"):
        type("Wrong", (Event,), {}, exchange="x", key="k", audience="billing")


def test_validation_errors_do_not_show_the_content() -> None:
    class Login(Command, queue="login"):
        password: int

    with pytest.raises(ValidationError, match="password") as caught:
        Login.model_validate_json(b'{"password": "hunter2"}')
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("cause", [str(UUID(int=7)), "order-7", "ö" * 36, "x" * 300])
@pytest.mark.parametrize("kind", [CancelOrder(order_id="7"), b"raw"])
def test_a_message_published_in_a_handler_names_its_cause(cause: str, kind: object) -> None:
    handled = Delivery(b"", "", "", "q", False, {}, {"message_id": cause})
    with as_current_delivery(handled):
        outgoing = encode(kind, now=NOW, exchange="", key="k")
        own = encode(kind, now=NOW, exchange="", key="k", headers={"warren-cause": "another"})
    assert on_the_wire(outgoing)["headers"] == {"warren-cause": cause}
    assert own.headers == {"warren-cause": "another"}
    # The prepared header is that which a change of the message would encode.
    prepared = outgoing.header()
    outgoing.set_header("warren-cause", cause)
    assert outgoing.header() == prepared
    assert "warren-cause" not in encode(kind, now=NOW, exchange="", key="k").headers
    nameless = Delivery(b"", "", "", "q", False, {}, {})
    with as_current_delivery(nameless):
        assert "warren-cause" not in encode(kind, now=NOW, exchange="", key="k").headers
