"""Operating logs of an App: its start, each failed attempt with what follows, each message at debug level, and its stop."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.polling import eventually
from warren.core.log_output import split_event
from warren.patterns import Deadline, MemoryStore
from warren.sdk import App, Command, DeadLetter, Delivery, Retry
from warren.wire.amqp_url import parse_url


class Charge(Command, queue="billing"):
    order: int = 0


def events(caplog: pytest.LogCaptureFixture, event: str) -> list[tuple[dict[str, Any], logging.LogRecord]]:
    found = []
    for record in caplog.records:
        parts = split_event(record)
        if parts is not None and parts[0] == event:
            found.append((parts[1], record))
    return found


async def test_the_start_and_the_stop_are_a_few_lines(
    make_app: MakeApp,
    name: str,
    amqp_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Pay(Command, queue=name):
        pass

    caplog.set_level(logging.INFO, "warren.sdk")
    monkeypatch.setenv("WARREN_RUN_WORKER", "2/4")
    app, handled = make_app(name="shop"), asyncio.Event()

    @app.handle(Pay, concurrency=3, prefetch=5)
    async def pay(message: Pay) -> None:
        handled.set()

    async with app:
        await app.publish(Pay())
        await handled.wait()
        await eventually(lambda: app.statistics().handled == 1, "the message is handled")
    ((started, _),) = events(caplog, "app.started")
    url = parse_url(amqp_url)
    assert (started["name"], started["worker"], started["queues"]) == ("shop", "2/4", 1)
    assert (started["broker"], started["virtual_host"]) == (url.masked, url.virtual_host)
    assert url.password not in started["broker"].replace(f"//{url.user}@", "")
    assert started["product"] == f"Warren {started['warren']}" or started["product"].startswith("RabbitMQ ")
    assert started["warren"][0].isdigit()
    ((consumer, _),) = events(caplog, "consumer.started")
    assert consumer == {"queue": name, "handlers": "pay", "concurrency": 3, "prefetch": 5}
    ((stopped, _),) = events(caplog, "app.stopped")
    counts = [
        stopped[key] for key in ("handled", "failed", "dead_lettered", "published", "requeued", "unconfirmed")
    ]
    assert counts == [1, 0, 0, 1, 0, 0]


async def test_the_handler_of_a_pattern_has_the_name_of_the_pattern(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "warren.sdk")
    app = App("memory://")
    app.include(Deadline("unpaid", after=60, signal=lambda key: Charge(), store=MemoryStore()))
    async with app:
        pass
    ((consumer, _),) = events(caplog, "consumer.started")
    assert (consumer["queue"], consumer["handlers"]) == ("unpaid.due", "Deadline")


async def test_what_a_stop_leaves_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "warren.sdk")
    app, running = App("memory://", grace=0.01), asyncio.Event()

    @app.handle(Charge, concurrency=1, prefetch=3)
    async def charge(message: Charge) -> None:
        running.set()
        await asyncio.Event().wait()

    async with app:
        await app.publish_many([Charge(order=number) for number in range(3)])
        await running.wait()
        await eventually(
            lambda: app.statistics().subscriptions["billing"].delivered == 3, "three are delivered"
        )
    ((stopped, _),) = events(caplog, "app.stopped")
    assert stopped["requeued"] == 3


def charge_by(fail: Exception | None, order: int) -> None:
    try:
        raise ValueError(f"no price\nof {order}")
    except ValueError as error:
        raise LookupError("cannot\ncharge") from (fail or error)


async def test_each_failed_attempt_is_one_line_with_its_number_and_what_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "warren.sdk")
    app, dead = App("memory://", retry=Retry(2, first_wait="1ms").then("20ms")), asyncio.Event()

    @app.handle(Charge)
    async def charge(message: Charge) -> None:
        charge_by(None, message.order)

    @app.handle(bytes, queue="billing.dead")
    async def take_dead_letter(body: bytes) -> None:
        dead.set()

    async with app:
        await app.publish(Charge(order=7), message_id="m1")
        await dead.wait()
    failed = events(caplog, "handler.failed")
    assert [(each["attempt"], each["attempts"]) for each, _ in failed] == [(1, 4), (2, 4), (3, 4)]
    # A random wait of up to 1 ms, in whole milliseconds.
    assert failed[0][0]["next"] in ("again in 0 s", "again in 0.001 s")
    assert failed[1][0]["next"] == "again in 0.02 s"
    assert {(each["handler"], each["queue"], each["message_id"]) for each, _ in failed} == {
        ("charge", "billing", "m1")
    }
    assert [each["error"] for each, _ in failed] == ["cannot charge"] * 3
    # The traceback is logged once a delivery.
    assert [record.exc_info is not None for _, record in failed] == [False, True, False]
    ((last, record),) = events(caplog, "message.dead_lettered")
    assert (last["attempt"], last["attempts"], last["dead_letter_queue"]) == (4, 4, "billing.dead")
    assert (last["handler"], last["reason"], last["error"]) == ("charge", "failed", "cannot charge")
    assert record.exc_info is not None
    assert [frame.name for frame in traceback.extract_tb(record.exc_info[2])] == ["charge", "charge_by"]
    text = logging.Formatter().format(record)
    assert "direct cause" in text
    assert "ValueError: no price" in text
    assert "tenacity" not in text
    assert "warren/sdk" not in text


async def test_a_traceback_begins_at_the_handler_below_a_middleware_and_in_a_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, dead = App("memory://", retry=Retry(1)), asyncio.Semaphore(0)

    async def middleware(delivery: Delivery, call_next: Any) -> None:
        await call_next(delivery)

    app.middleware(handle=middleware)

    @app.handle(Charge)
    def charge(message: Charge) -> None:
        charge_by(None, message.order)

    @app.handle(dict, queue="other")
    async def refuse(content: dict[str, Any]) -> None:
        raise DeadLetter("not for us")

    @app.handle(bytes, queue="billing.dead")
    async def dead_charge(body: bytes) -> None:
        dead.release()

    async with app:
        await app.publish(Charge())
        await app.publish({"a": 1}, key="other")
        await dead.acquire()
        await eventually(lambda: len(events(caplog, "message.dead_lettered")) == 2, "both are dead-lettered")
    logged = {each["reason"]: (each, record) for each, record in events(caplog, "message.dead_lettered")}
    _, record = logged["failed"]
    assert record.exc_info is not None
    assert [frame.name for frame in traceback.extract_tb(record.exc_info[2])] == ["charge", "charge_by"]
    rejected, record = logged["rejected"]
    assert (rejected["attempt"], rejected["dead_letter_queue"]) == ("-", "other.dead")
    assert record.exc_info is None


async def test_each_message_is_a_line_at_debug_level_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "warren.sdk")
    app, seen = App("memory://", retry=Retry(1).then("10ms").on(LookupError)), asyncio.Semaphore(0)

    @app.handle(Charge)
    async def charge(message: Charge, delivery: Delivery) -> None:
        if message.order == 1 and delivery.attempt == 1:
            raise LookupError
        if message.order == 2:
            raise ValueError
        seen.release()

    async with app:
        for order in range(3):
            await app.publish(Charge(order=order), message_id=f"m{order}")
        await seen.acquire()
        await seen.acquire()
        await eventually(lambda: len(events(caplog, "message.processed")) == 4, "four deliveries are handled")
        logging.getLogger("warren.sdk").setLevel(logging.INFO)
        await app.publish(Charge())
        await seen.acquire()
    lines = [each for each, _ in events(caplog, "message.processed")]
    assert sorted((each["message_id"], each["outcome"]) for each in lines) == [
        ("m0", "handled"), ("m1", "delayed"), ("m1", "handled"), ("m2", "dead_lettered"),
    ]  # fmt: skip
    assert {(each["handler"], each["queue"], each["type"]) for each in lines} == {
        ("charge", "billing", "charge")
    }
    assert all(each["milliseconds"] >= 0 for each in lines)
