"""`warren asyncapi`: a valid AsyncAPI 3.0 document with all messages of an App."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, Module

SHOP = '''
from datetime import datetime
from decimal import Decimal
from pydantic import BaseModel
from warren.sdk import App, Command, Event, Request, Scatter

class Line(BaseModel):
    sku: str
    price: Decimal

class Placed(Event, exchange="orders", key="order.placed", audience=["billing"]):
    """An order was placed."""
    order_id: str
    at: datetime
    lines: list[Line] = []

class Cancel(Command, queue="orders/cancel"):
    order_id: str

class Quote(BaseModel):
    price: Decimal

class Gone(BaseModel):
    since: datetime

class GetQuote(Request[Quote | Gone], queue="quotes"):
    sku: str

class AskPrice(Scatter[Quote], exchange="prices", key="ask", audience=["north"]):
    sku: str

app = App("amqps://user:secret@broker.example:5999/shop%2Feu")
app.publishes(Placed, GetQuote, AskPrice)

@app.handle(Placed, queue="billing", keys=["order.*"])
async def bill(order: Placed) -> None:
    """Bill an order.

    Once."""

@app.handle(Cancel)
async def cancel(message: Cancel) -> None: ...

@app.handle(GetQuote)
async def quote(request: GetQuote) -> Quote | Gone:
    return Quote(price=Decimal(1))

@app.handle.batch(Placed, queue="history", size=10)
async def keep(orders: list[Placed]) -> None:
    """Keep all orders."""

@app.handle(bytes, queue="raw")
async def raw(body: bytes) -> None: ...
'''

# What the specification allows in each object; `x-` is free everywhere.
FIELDS = {
    "document": {"asyncapi", "id", "info", "servers", "defaultContentType", "channels", "operations", "components"},
    "info": {"title", "version", "description", "termsOfService", "contact", "license", "tags", "externalDocs"},
    "server": {"host", "protocol", "protocolVersion", "pathname", "description", "title", "security", "bindings"},
    "channel": {"address", "messages", "title", "summary", "description", "servers", "parameters", "bindings"},
    "operation": {"action", "channel", "title", "summary", "description", "security", "tags", "bindings", "traits",
                  "messages", "reply"},
    "reply": {"address", "channel", "messages"},
    "message": {"headers", "payload", "correlationId", "contentType", "name", "title", "summary", "description",
                "bindings", "examples", "traits"},
    "amqp queue": {"name", "durable", "exclusive", "autoDelete", "vhost"},
    "amqp exchange": {"name", "type", "durable", "autoDelete", "vhost"},
}  # fmt: skip


def only(kind: str, value: dict[str, Any]) -> None:
    strange = {key for key in value if not key.startswith("x-")} - FIELDS[kind]
    assert not strange, f"a {kind} has no {strange}"


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def found(document: dict[str, Any], reference: str) -> Any:
    assert reference.startswith("#/")
    value: Any = document
    for step in reference[2:].split("/"):
        value = value[step.replace("~1", "/").replace("~0", "~")]
    return value


@pytest.fixture
def document(warren: Command, module: Module) -> dict[str, Any]:
    done = warren("asyncapi", f"{module(SHOP)}:app", "--title", "Shop", "--version", "2.1")
    assert done.status == 0, done.err
    made: dict[str, Any] = done.json
    return made


def test_the_document_is_valid_asyncapi_3(document: dict[str, Any]) -> None:
    assert document["asyncapi"] == "3.0.0"
    assert document["info"] == {"title": "Shop", "version": "2.1"}
    only("document", document)
    for kind, section in (("server", "servers"), ("channel", "channels"), ("operation", "operations")):
        for key, value in document[section].items():
            assert re.fullmatch(r"[A-Za-z0-9_.-]+", key)
            only(kind, value)
    for reference in references(document):
        assert found(document, reference) is not None
    for server in document["servers"].values():
        assert {"host", "protocol"} <= set(server)
    for name, channel in document["channels"].items():
        assert channel["address"] is None or isinstance(channel["address"], str)
        for message in channel["messages"].values():
            assert message["$ref"].startswith("#/components/messages/")
        binding = channel.get("bindings", {}).get("amqp")
        if binding is None:
            assert name.endswith(".reply")
            continue
        (kind,) = {"queue", "exchange"} & set(binding)
        only(f"amqp {kind}", binding[kind])
        assert binding["is"] == ("queue" if kind == "queue" else "routingKey")
        assert binding["bindingVersion"] == "0.3.0"
    for operation in document["operations"].values():
        assert operation["action"] in ("send", "receive")
        for part in (operation, *([operation["reply"]] if "reply" in operation else [])):
            channel = part["channel"]["$ref"]
            assert channel.startswith("#/channels/")
            # The messages of an operation refer to its channel.
            assert all(each["$ref"].startswith(f"{channel}/messages/") for each in part["messages"])
        if "reply" in operation:
            only("reply", operation["reply"])
            assert found(document, operation["reply"]["channel"]["$ref"])["address"] is None
    for message in document["components"]["messages"].values():
        only("message", message)
        assert "payload" in message
    assert "secret" not in json.dumps(document)


def test_the_document_has_channels_operations_and_schemas(document: dict[str, Any]) -> None:
    assert document["servers"]["broker"] == {
        "host": "broker.example:5999",
        "protocol": "amqps",
        "protocolVersion": "0.9.1",
        "pathname": "/shop%2Feu",
    }
    actions = {name: each["action"] for name, each in document["operations"].items()}
    assert actions == {
        "handle_Placed": "receive",
        "handle_Cancel": "receive",
        "handle_GetQuote": "receive",
        "handle_Placed_2": "receive",
        "handle_bytes": "receive",
        "publish_Placed": "send",
        "publish_GetQuote": "send",
        "publish_AskPrice": "send",
    }
    assert document["operations"]["handle_Placed_2"]["summary"] == "Keep all orders."
    assert "reply" in document["operations"]["publish_AskPrice"]
    assert document["operations"]["handle_Placed"]["summary"] == "Bill an order."
    sent = found(document, document["operations"]["publish_Placed"]["channel"]["$ref"])
    assert (sent["address"], sent["bindings"]["amqp"]["exchange"]["name"]) == ("order.placed", "orders")
    billing = document["channels"]["billing"]
    assert {"exchange": "orders", "routingKey": "order.*"} in billing["x-bound-to"]
    assert document["channels"]["orders_cancel"]["address"] == "orders/cancel"
    messages, schemas = document["components"]["messages"], document["components"]["schemas"]
    # Decimals are sent as texts, as JSON has none, and numbers are read, too: the message has two forms.
    placed, sent = messages["Placed-Input"], messages["Placed-Output"]
    assert (placed["title"], sent["title"]) == ("Placed (received)", "Placed (sent)")
    assert (placed["name"], placed["description"]) == ("placed", "An order was placed.")
    assert placed["bindings"]["amqp"]["messageType"] == "placed"
    assert placed["payload"] == {"$ref": "#/components/schemas/Placed-Input"}
    assert schemas["Placed-Input"]["required"] == ["order_id", "at"]
    price = schemas["Line-Input"]["properties"]["price"]
    assert [each["type"] for each in price["anyOf"]] == ["number", "string"]
    assert schemas["Line-Output"]["properties"]["price"]["type"] == "string"
    assert messages["bytes"]["contentType"] == "application/octet-stream"
    reply = messages["GetQuoteReply-Output"]["payload"]
    assert reply == {
        "anyOf": [{"$ref": "#/components/schemas/Quote-Output"}, {"$ref": "#/components/schemas/Gone"}]
    }


def test_the_suffix_of_the_file_selects_yaml(
    warren: Command, module: Module, tmp_path: Path, document: dict[str, Any]
) -> None:
    yaml = pytest.importorskip("yaml")
    target = f"{module(SHOP)}:app"
    file = tmp_path / "asyncapi.yaml"
    words = ("asyncapi", target, "--title", "Shop", "--version", "2.1")
    assert warren(*words, "-o", file).status == 0
    assert yaml.safe_load(file.read_text()) == document
    assert yaml.safe_load(warren(*words, "--format", "yaml").out) == document


@pytest.mark.parametrize(
    ("words", "status", "error_text"),
    [
        (["none:app"], 2, "there is no module"),
        (["MODULE:app", "--format", "xml"], 2, "'xml' is not one of"),
        (["MODULE:app", "-o", "no/such/folder/x.json"], 74, "cannot write"),
        (["MODULE:app", "--url", "http://x"], 2, "not an AMQP URL"),
    ],
)
def test_wrong_use_is_an_error_of_one_line(
    warren: Command, module: Module, words: list[str], status: int, error_text: str
) -> None:
    name = module(SHOP)
    done = warren("asyncapi", *(word.replace("MODULE", name) for word in words))
    assert (done.status, len(done.err.splitlines())) == (status, 1), done
    assert error_text in done.err
