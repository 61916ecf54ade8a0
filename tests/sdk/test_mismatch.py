"""Mismatch report: existing items with other arguments are reported completely, or adopted."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.proxy_faults import HeldFrame
from warren.sdk import Command, Event, Exchange, Queue, TopologyMismatch
from warren.sdk.topology.declarations import Declaration
from warren.sdk.topology.mismatch import Difference, read_mismatch


def found(error: pytest.ExceptionInfo[TopologyMismatch]) -> dict[str, tuple[Any, Any]]:
    return {each.argument: (each.declared, each.current) for each in error.value.differences}


async def test_every_argument_that_differs_is_named_with_both_values(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    there: dict[str, Any] = {
        "x-queue-type": "quorum",
        "x-message-ttl": 2000,
        "x-max-length": 5,
        "x-overflow": "drop-head",
        "x-single-active-consumer": True,
    }
    await amqp_client.channel.declare_queue(name, durable=True, arguments=there)
    app = make_app()
    app.declare(Queue(name, message_ttl=timedelta(seconds=1), dead_letter_exchange="it's", max_length=5))
    with pytest.raises(TopologyMismatch) as caught:
        await app.start()
    assert found(caught) == {
        "x-delivery-limit": (20, None),
        "x-message-ttl": (1000, 2000),
        "x-overflow": ("reject-publish", "drop-head"),
        "x-dead-letter-exchange": ("it's", None),
        "x-dead-letter-strategy": ("at-least-once", None),
        "x-single-active-consumer": (None, True),
    }
    assert all(argument in str(caught.value) for argument in found(caught))
    assert "x-single-active-consumer is True on the broker and none here" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_differing_properties_are_named_too(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    exchange = f"{name}.x"
    await amqp_client.channel.declare_exchange(
        exchange, "fanout", durable=False, auto_delete=True, arguments={"alternate-exchange": "lost"}
    )
    app = make_app()
    app.declare(Exchange(exchange))
    with pytest.raises(TopologyMismatch) as caught:
        await app.start()
    assert found(caught) == {
        "type": ("topic", "fanout"),
        "durable": (True, False),
        "auto_delete": (False, True),
        "alternate-exchange": (None, "lost"),
    }


@pytest.mark.parametrize("kind", ["exchange", "classic", "quorum", "stream"])
async def test_what_is_deleted_while_it_is_compared_does_not_come_back_with_its_old_arguments(
    make_app: MakeApp, proxy: Proxy, amqp_client: AsyncClient, name: str, kind: Any
) -> None:
    item = Exchange(name) if kind == "exchange" else Queue(name, type=kind)
    frame, channel = ("exchange.declare" if kind == "exchange" else "queue.declare"), amqp_client.channel
    delete = channel.exchange_delete if kind == "exchange" else channel.queue_delete

    async def delete_before(declaration: int) -> bool:
        """Delete it before this declaration of an App that starts; return whether the App got so far."""
        if kind == "exchange":
            await channel.declare_exchange(name, "fanout", auto_delete=True)
        else:
            other = "x-stream-max-segment-size-bytes" if kind == "stream" else "x-max-length"
            old = {"x-queue-type": kind, "x-max-length-bytes": 5_000_000, other: 1_000_000}
            await channel.declare_queue(name, durable=True, arguments=old)
        app = make_app(proxy.url)
        app.declare(item)
        with HeldFrame(proxy.to_server, frame, nth=declaration) as held:
            start = asyncio.create_task(app.start())
            await eventually(lambda: held.hit or start.done(), "the declaration is sent, or was not needed")
            was_sent = held.hit
            await delete(name)
            proxy.to_server.release()
            await asyncio.wait((start,))
        assert start.exception() is None or isinstance(start.exception(), TopologyMismatch)
        await app.stop()
        return was_sent

    declaration = 1
    while await delete_before(declaration):
        # Now it does not exist, or as it is declared.
        app = make_app()
        app.declare(item)
        async with app:
            await delete(name)
        declaration += 1
    assert declaration > 3


async def test_adopt_uses_it_unchanged_and_logs_the_differences(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await amqp_client.channel.declare_queue(name, durable=True, arguments={"x-max-length": 7})
    app = make_app(mismatch="adopt")
    app.declare(Queue(name))
    with caplog.at_level(logging.WARNING, "warren.sdk"):
        async with app:
            await app.publish(b"1", exchange="", key=name)
    await amqp_client.holds(name, 1)
    assert f"event=topology.mismatch_adopted item=queue '{name}'" in caplog.text
    assert "x-max-length is 7 on the broker and none here" in caplog.text


async def test_what_an_app_publishes_is_declared_at_its_start(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Placed(Event, exchange=f"{name}.orders", key="placed", audience=[f"{name}.billing"]):
        pass

    class Cancel(Command, queue=f"{name}.cancel"):
        pass

    app = make_app()
    app.publishes(Placed, Cancel)
    async with app:
        assert await amqp_client.count(f"{name}.billing") == await amqp_client.count(f"{name}.cancel") == 0
        await app.publish(Placed())
        await amqp_client.holds(f"{name}.billing", 1)


@pytest.mark.parametrize(
    ("text", "difference"),
    [
        ("received '5' but current is '6'", Difference("x-max-length", 5, 6)),
        ("received '5' but current is 'six'", Difference("x-max-length", 5, "six")),
        ("received the value '5' of type 'long' but current is none", Difference("x-max-length", 5, None)),
        ("received none but current is the value 'a 'b'' of type 'longstr'", Difference("x-max-length", 5, "a 'b'")),
        ("received '5' but cur...", None),
        ("received '5' but current is 'cut o", None),
    ],
)  # fmt: skip
def test_the_text_of_a_mismatch_is_parsed(text: str, difference: Difference | None) -> None:
    form = Declaration.of(Queue("a: received none but current is none", max_length=5))
    whole = (
        f"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue '{form.name}' in vhost '/': {text}"
    )
    assert read_mismatch(whole, form) == difference
    assert read_mismatch(whole, Declaration.of(Queue("another"))) is None
