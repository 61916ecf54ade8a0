"""`warren publish` and `warren call`: confirms, replies and errors."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.cli.conftest import Command, Module
from tests.support.broker_process import warren as command
from tests.support.pika_connection import pika_connection
from tests.support.processes import Child

SHOP = """
from decimal import Decimal
from pydantic import BaseModel
from warren.sdk import App, Event, RemoteError, Request, Scatter

class Quote(BaseModel):
    sku: str
    price: Decimal

class Placed(Event, exchange="{name}.orders", key="order.placed", audience=["{name}.billing"]):
    order_id: str
    count: int = 1

class GetQuote(Request[Quote], queue="{name}.quotes"):
    sku: str

class AskPrice(Scatter[Quote], exchange="{name}.prices", key="ask", audience=["{name}.north", "{name}.south"]):
    sku: str

app = App({url!r})
app.publishes(AskPrice)

@app.handle(AskPrice, queue="{name}.north")
async def offer(request: AskPrice) -> Quote:
    return Quote(sku=request.sku, price=Decimal(8))

@app.handle(GetQuote)
async def quote(request: GetQuote) -> Quote:
    if request.sku != "lamp":
        raise RemoteError("unknown_sku", "there is no " + request.sku)
    return Quote(sku=request.sku, price=Decimal("9.90"))
"""


@pytest.fixture
def channel(amqp_url: str, name: str) -> Iterator[BlockingChannel]:
    connection = pika_connection(amqp_url)
    channel = connection.channel()
    yield channel
    for queue in ("billing", "quotes", "plain", "north", "south"):
        channel.queue_delete(f"{name}.{queue}")
        channel.queue_delete(f"{name}.{queue}.dead")
    channel.exchange_delete(f"{name}.orders")
    channel.exchange_delete(f"{name}.prices")
    connection.close()


@pytest.fixture
def shop(module: Module, amqp_url: str, name: str) -> str:
    return module(SHOP.format(name=name, url=amqp_url))


def taken(channel: BlockingChannel, queue: str) -> tuple[pika.BasicProperties, bytes]:
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert method is not None, f"{queue} is empty"
    assert properties is not None
    assert body is not None
    return properties, body


def test_a_message_class_is_validated_published_and_confirmed(
    warren: Command, shop: str, amqp_url: str, channel: BlockingChannel, name: str
) -> None:
    words = ["publish", f"{shop}:Placed", '{"order_id": "42", "count": "2"}', "--url", amqp_url]
    missing = warren(*words)
    assert (missing.status, len(missing.err.splitlines())) == (1, 1)
    assert "missing on the broker" in missing.err
    assert "`warren publish --declare`" in missing.err
    done = warren(*words, "--declare", "--header", "origin=test", "--expiration", "1m")
    assert (done.status, done.out) == (0, "confirmed: 1\n"), done.err
    properties, body = taken(channel, f"{name}.billing")
    assert json.loads(body) == {"order_id": "42", "count": 2}
    assert (properties.type, properties.expiration, properties.delivery_mode) == ("placed", "60000", 2)
    assert properties.headers["origin"] == "test"
    wrong = warren("publish", f"{shop}:Placed", '{"count": "many"}', "--url", amqp_url)
    assert (wrong.status, len(wrong.err.splitlines())) == (2, 1)
    assert "order_id: Field required; count: Input should be a valid integer" in wrong.err


def test_a_body_may_be_a_word_a_file_or_lines(
    warren: Command,
    amqp_url: str,
    channel: BlockingChannel,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = f"{name}.plain"
    channel.queue_declare(queue, durable=True)
    monkeypatch.setenv("AMQP_URL", amqp_url)
    assert warren("publish", queue, "1.10").status == 0
    properties, body = taken(channel, queue)
    assert (properties.content_type, body) == ("application/json", b"1.10")
    (tmp_path / "body").write_bytes(b"\xff\x00")
    assert warren("publish", queue, f"@{tmp_path / 'body'}", "--type", "raw", "--transient").status == 0
    properties, body = taken(channel, queue)
    assert (properties.content_type, body, properties.type) == (
        "application/octet-stream",
        b"\xff\x00",
        "raw",
    )
    assert properties.delivery_mode == 1
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    lines = warren("publish", queue, "--lines", "--json")
    assert lines.json == {"confirmed": 2, "failed": []}
    assert [taken(channel, queue)[1] for _ in range(2)] == [b"one", b"two"]


def test_each_property_has_a_flag(
    warren: Command, amqp_url: str, channel: BlockingChannel, name: str
) -> None:
    queue = f"{name}.plain"
    channel.queue_declare(queue, durable=True)
    words = "--type t --content-type text/csv --content-encoding gzip --priority 3 --message-id m --correlation-id c"
    more = "--reply-to r --timestamp 2026-02-01T12:00:00Z --user-id guest --app-id a --expiration 5s"
    done = warren("publish", queue, "x", *words.split(), *more.split(), "--url", amqp_url)
    assert done.status == 0, done.err
    found, _ = taken(channel, queue)
    assert (found.type, found.content_type, found.content_encoding) == ("t", "text/csv", "gzip")
    assert (found.priority, found.message_id, found.correlation_id) == (3, "m", "c")
    assert (found.reply_to, found.timestamp, found.user_id) == ("r", 1769947200, "guest")
    assert (found.app_id, found.expiration) == ("a", "5000")


def test_an_unroutable_message_is_a_failure(warren: Command, amqp_url: str, name: str) -> None:
    done = warren("publish", f"{name}.nowhere", "x", "--url", amqp_url)
    assert (done.status, done.out) == (1, "confirmed: 0\n")
    assert "1 not confirmed: no queue takes routing key" in done.err
    outcome = warren("publish", f"{name}.nowhere", "x", "--url", amqp_url, "--json")
    assert (outcome.status, outcome.json["confirmed"], len(outcome.json["failed"])) == (1, 0, 1)


def test_a_request_prints_its_reply_and_an_error_is_one_line(
    warren: Command, shop: str, amqp_url: str, channel: BlockingChannel, name: str, tmp_path: Path
) -> None:
    at = ("--url", amqp_url)
    nobody = warren("call", f"{shop}:GetQuote", '{"sku": "lamp"}', *at)
    assert (nobody.status, len(nobody.err.splitlines())) == (1, 1)
    assert "nobody serves queue" in nobody.err
    with Child(command("run", f"{shop}:app"), cwd=tmp_path) as server:
        server.wait_for_line("warren run ready")
        typed = warren("call", f"{shop}:GetQuote", '{"sku": "lamp"}', *at)
        assert (typed.status, typed.json) == (0, {"sku": "lamp", "price": "9.90"}), typed.err
        untyped = warren("call", f"{name}.quotes", '{"sku": "lamp"}', *at)
        assert (untyped.status, untyped.json) == (0, {"sku": "lamp", "price": "9.90"}), untyped.err
        first = warren("call", f"{shop}:AskPrice", '{"sku": "lamp"}', "--replies", "1", *at)
        value = {"queue": f"{name}.north", "value": {"sku": "lamp", "price": "8"}}
        assert first.status == 0, first.err
        assert first.json == {"replies": [value], "silent": [f"{name}.south"]}
        unknown = warren("call", f"{shop}:GetQuote", '{"sku": "desk"}', *at)
        assert (unknown.status, unknown.err) == (1, "warren call: unknown_sku: there is no desk\n")


@pytest.mark.parametrize(
    ("words", "status", "error_text"),
    [
        (["publish", "queue", "x"], 2, "no broker is named; use --url"),
        (["publish", "SHOP:Missing", "{}", "--url", "URL"], 2, "has no 'Missing'; "),
        (["publish", "queue", "@none", "--url", "URL"], 2, "cannot read none"),
        (["publish", "queue", "x", "--header", "novalue", "--url", "URL"], 2, "write NAME=VALUE"),
        (["publish", "queue", "x", "--expiration", "soon", "--url", "URL"], 2, "no duration"),
        (["publish", "queue", "x", "--priority", "256", "--url", "URL"], 2, "it is from 0 to 255"),
        (["publish", "queue", "x", "--timestamp", "soon", "--url", "URL"], 2, "is no time"),
        (["publish", "queue", "x", "--lines", "--message-id", "m", "--url", "URL"], 2, "one message"),
        (["publish", "queue", "x", "--url", "amqp://127.0.0.1:1", "--timeout", "0.1"], 74, "cannot connect"),
        (["call", "SHOP:Placed", "{}", "--url", "URL"], 2, "is not a request class; "),
        (["call", "queue", "[1]", "--url", "URL"], 2, "must be a JSON object"),
        (["call", "queue", "{}", "--url", "amqp://127.0.0.1:1", "--timeout", "0.1"], 74, "cannot connect"),
        (["call"], 2, "Missing argument"),
    ],
)  # fmt: skip
def test_wrong_use_is_an_error_of_one_line(
    warren: Command, shop: str, amqp_url: str, words: list[str], status: int, error_text: str
) -> None:
    done = warren(*(word.replace("SHOP", shop).replace("URL", amqp_url) for word in words))
    assert (done.status, len(done.err.splitlines())) == (status, 1), done
    assert error_text in done.err


@pytest.mark.parametrize("command", ["publish", "call"])
def test_a_command_that_waits_for_a_broker_says_so(
    warren: Command, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At once: on a machine that stands still, a second might end after the command has given up.
    monkeypatch.setattr("warren.cli.connecting.SILENT_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"amqp://ann:secret@127.0.0.1:{port}/"
        waited = warren(command, "jobs", '{"number": 1}', "--url", url, "--timeout", "1.5s")
    assert waited.status == 74
    assert f"waiting for a broker at 127.0.0.1:{port}, for up to 1.5 s" in waited.err
    assert "secret" not in waited.err
