"""`warren trace`: the story of a message over two applications, with its causes, effects and dead letter."""

from __future__ import annotations

import asyncio
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.patterns.checkout_saga import Checkout, CheckoutState
from tests.support.blocking_client import Connection
from warren.cli.trace import event_stream
from warren.cli.trace.diagrams import html_page, mermaid
from warren.cli.trace.main import main
from warren.core.capture_events import EventBatch, event_prefix
from warren.core.errors import ExitStatus, UsageError
from warren.core.message_story import CapturedEvent, Causes, Step, Story, tell
from warren.patterns import SqliteStore
from warren.sdk import App, Capture, Command, DeadLetter, Delivery, Event


@pytest.fixture
async def stream(name: str, amqp_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    monkeypatch.setenv("AMQP_URL", amqp_url)
    yield f"{name}.events"
    with Connection(amqp_url) as connection:
        connection.channel().delete(f"{name}.events")


async def trace(*words: str) -> int:
    return await asyncio.to_thread(main, words)


@pytest.fixture
async def shop(name: str, amqp_url: str, stream: str) -> AsyncIterator[str]:
    """Let an order be placed by one App and billed by another, which ships, and dead-letters a second order."""

    class OrderPlaced(Event, exchange=f"{name}.orders", key="placed", audience=[f"{name}.billing"]):
        number: int

    class Ship(Command, queue=f"{name}.shipping"):
        number: int

    shop = App(amqp_url, name="shop", capture=Capture(stream=stream, within=0.01))
    billing = App(amqp_url, name="billing", capture=Capture(stream=stream, within=0.01))
    attempts: list[int] = []
    causes: dict[int, str | None] = {}
    done: asyncio.Queue[int] = asyncio.Queue()

    @billing.handle(OrderPlaced, queue=f"{name}.billing")
    async def bill(order: OrderPlaced, delivery: Delivery) -> None:
        attempts.append(order.number)
        if order.number == 2:
            raise DeadLetter("no address")
        await billing.publish(Ship(number=order.number), message_id="ship-1")

    @billing.handle(Ship)
    async def ship(command: Ship, delivery: Delivery) -> None:
        causes[command.number] = delivery.cause
        done.put_nowait(command.number)

    async with billing, shop:
        await shop.publish(OrderPlaced(number=2), message_id="order-2")
        await shop.publish(OrderPlaced(number=1), message_id="order-1")
        await asyncio.wait_for(done.get(), 60)
    assert causes == {1: "order-1"}
    yield stream
    with Connection(amqp_url) as connection:
        channel = connection.channel()
        for queue in ("billing", "billing.dead", "shipping", "shipping.dead"):
            if channel.exists(f"{name}.{queue}"):
                channel.delete(f"{name}.{queue}")
            channel = connection.channel()
        channel.delete_exchange(f"{name}.orders")


def texts(printed: dict[str, Any], message_id: str) -> list[str]:
    return [step["text"] for step in printed["steps"] if step["message_id"] == message_id]


async def test_the_story_of_a_message_has_its_causes_and_effects(
    shop: str, name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert await trace("order-1", "--stream", shop, "--json") == ExitStatus.SUCCESS
    printed = json.loads(capsys.readouterr().out)
    assert printed["messages"] == [
        {"message_id": "order-1", "cause": None},
        {"message_id": "ship-1", "cause": "order-1"},
    ]
    assert printed["missing_events"] == 0
    assert sorted(texts(printed, "order-1")) == ["ack", "confirmed", "deliver", "publish placed"]
    published = printed["steps"][0]
    assert (published["from"], published["to"]) == ("shop", f"exchange {name}.orders")
    # From the effect, the same story.
    diagram, page = tmp_path / "story.mmd", tmp_path / "story.html"
    words = ("--stream", shop, "--since", "1h", "--mermaid", str(diagram), "--html", str(page))
    assert await trace("ship-1", *words) == ExitStatus.SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["M1  order-1", "M2  ship-1  caused by M1"]
    assert any(line.endswith(f"M2  queue {name}.shipping -> billing: deliver") for line in lines)
    _check_diagrams(diagram, page, name)


def _check_diagrams(diagram: Path, page: Path, name: str) -> None:
    text = diagram.read_text()
    assert text.startswith(
        f"sequenceDiagram\n    participant P1 as shop\n    participant P2 as exchange {name}.orders\n"
    )
    assert "    P1->>P2: M1 publish placed\n" in text
    html = page.read_text()
    root = ET.fromstring(re.search(r"<svg.*</svg>", html, re.DOTALL)[0])  # type: ignore[index]
    assert "shop" in [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert not re.search(r"<script|<link|<img|\bsrc=|url\(|@import", html)
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) == {"http://www.w3.org/2000/svg"}


async def test_a_dead_letter_is_part_of_the_story(
    shop: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await trace("order-2", "--stream", shop, "--json") == ExitStatus.SUCCESS
    printed = json.loads(capsys.readouterr().out)
    assert [each["message_id"] for each in printed["messages"]] == ["order-2"]
    assert "dead-lettered: rejected" in texts(printed, "order-2")


async def test_an_unknown_message_and_wrong_use(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await trace("order-9", "--stream", shop) == ExitStatus.FAILED
    error = capsys.readouterr().err
    assert re.fullmatch(
        rf"warren trace: no event of message order-9 in stream {shop}, read from its beginning: \d+ events, from .* UTC\n",
        error,
    )
    with pytest.raises(UsageError, match="capture events with"):
        await trace("order-1", "--stream", f"{shop}.none")
    for words in ((), ("order-1", "--saga", "a/b"), ("--saga", "a"), ("--saga", "a/b")):
        with pytest.raises(UsageError, match=r"give the id|NAME/KEY|--store"):
            await trace(*words)
    assert await trace("x", "--url", "amqp://127.0.0.1:1/") == ExitStatus.IO


async def test_a_source_whose_clock_is_ahead_does_not_end_the_story(
    stream: str, amqp_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    now = int(datetime.now(UTC).timestamp() * 1_000_000)
    ahead = EventBatch(
        "a-1", "sdk", "a", 1, [(event_prefix("published"), now + 3_600_000_000, "x", 1)], stream
    )
    order = EventBatch("b-1", "sdk", "b", 1, [(event_prefix("published"), now, "order-1", 1)], stream)
    with Connection(amqp_url) as connection:
        channel = connection.channel()
        channel.declare(stream, durable=True, x_queue_type="stream")
        channel.confirm()
        for batch in (ahead, order):
            channel.publish(
                stream,
                batch.body,
                headers=batch.headers,
                message_type=batch.properties["type"],
                app_id=batch.properties["app_id"],
            )
        assert channel.settled(2) == [True, True]
    assert await trace("order-1", "--stream", stream) == ExitStatus.SUCCESS
    assert capsys.readouterr().out.startswith("M1  order-1\n")
    # Nothing was written in this time: the command ends, too.
    assert await trace("order-2", "--stream", stream, "--since", "0s") == ExitStatus.FAILED


@pytest.mark.slow
async def test_a_stream_that_is_read_in_pages(
    shop: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "PREFETCH", 1)
    assert await trace("order-1", "--stream", shop) == ExitStatus.SUCCESS
    assert "M2  ship-1  caused by M1" in capsys.readouterr().out


async def test_the_story_of_a_saga(
    name: str, amqp_url: str, stream: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "store.sqlite")
    app = App(amqp_url, name="checkout", capture=Capture(stream=stream, within=0.01))
    checkout = Checkout(app, SqliteStore(path), name)
    checkout.handle_commands()
    async with app:
        await app.publish(checkout.placed(order_id="42"), message_id="placed-42")
        await checkout.wait_for_state("42", CheckoutState.PAYING)
    words = ("--saga", f"{name}/42", "--store", path, "--stream", stream)
    assert await trace(*words, "--html", str(tmp_path / "saga.html")) == ExitStatus.SUCCESS
    out = capsys.readouterr().out
    assert out.startswith(f"saga {name} of 42: paying\n")
    assert "M1  placed-42\n" in out
    assert "caused by M1" in out
    with pytest.raises(UsageError, match="this store has no saga"):
        await trace("--saga", f"{name}/43", "--store", path)


def event(name: str, message_id: str, at: int, by: str = "sdk", **fields: Any) -> CapturedEvent:
    return CapturedEvent(name, at, message_id, "app", by, "app-1", fields)


def test_causes_in_a_circle_and_many_effects_end() -> None:
    causes = Causes()
    causes.add(event("published", "a", 1, cause="b"))
    causes.add(event("published", "b", 2, cause="a"))
    assert set(causes.related(["a"])) == {"a", "b"}
    for number in range(1000):
        causes.add(event("published", f"e{number}", 3, cause="a"))
    assert len(causes.related(["a"])) == 500


def test_events_of_both_recorders_are_told_once() -> None:
    story = tell(
        {"a": ""},
        [
            event("published", "a", 1, exchange="orders", routing_key="placed"),
            event("published", "a", 2, "broker", exchange="orders", routing_key="placed", queue="billing",
                  connection="c"),
            event("delivered", "a", 3, "broker", queue="billing", connection="c"),
            event("delivered", "a", 4, queue="billing"),
            event("expired", "a", 5, "broker", queue="billing"),
            event("acked", "b", 6, queue="billing"),
        ],
    )  # fmt: skip
    assert [(step.source, step.target, step.text) for step in story.steps] == [
        ("app", "exchange orders", "publish placed"),
        ("exchange orders", "queue billing", "route placed"),
        ("queue billing", "app", "deliver"),
        ("queue billing", "queue billing", "expired"),
    ]


def test_names_of_messages_cannot_change_a_diagram() -> None:
    hostile = '</text><script>alert(1)</script>"; end\n    Note over P1: x'
    story = Story({hostile: ""}, (Step(1, hostile, "published", hostile, "queue q", hostile),))
    assert "<script" not in html_page(story, hostile)
    assert len(mermaid(story).splitlines()) == 4
