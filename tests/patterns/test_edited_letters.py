"""Dead letters by cause and edited, through the API; and no letter lost when its edit is killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.patterns.conftest import NewApp
from tests.support.async_client import take_one
from tests.support.polling import eventually
from tests.support.processes import Child
from tests.support.proxy import Proxy
from tests.support.proxy_queue_counts import FrameRewriter, method_of
from warren.patterns import (
    Cause,
    DeadLetterSelection,
    LetterEdit,
    ParkedMessage,
    ParkingLot,
    group,
    replay_edited,
)
from warren.patterns.dead_letters import EDITED, find
from warren.patterns.dead_letters.cause import normalise_error
from warren.patterns.dead_letters.parking_lot import count_messages
from warren.sdk import App, ConfigError, Delivery, Queue, Unroutable


async def park(app: App, name: str, **headers: object) -> None:
    app.declare(Queue(name), Queue(f"{name}.dead", dead_letter_exchange=None))
    dead = {
        "warren-dead-reason": "failed",
        "warren-dead-error": "ValueError: 7",
        "warren-dead-queue": name,
        "warren-exchange": "",
        "warren-key": name,
        "sent": datetime(2026, 11, 23, tzinfo=UTC),
    }
    async with app:
        await app.publish({"n": 1}, key=f"{name}.dead", message_id="m1", headers={**dead, **headers})


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("ValueError: 1,234.50 is below -7", "ValueError: <number> is below <number>"),
        ("KeyError: 'price'", "KeyError: 'price'"),
        (
            "E: order 0193f2c4-7d5e-7c3a-9f00-a1b2c3d4e5f6 of ann@example.org",
            "E: order <uuid> of <email>",
        ),
        ("E: https://api.example.org/v2/orders?id=7 answers 503", "E: <url> answers <number>"),
        ("E: <Order object at 0x7f2a11>", "E: <Order object at <hex>>"),
        ("E: 10.0.0.7:5432 since 2026-11-23T21:00:00.5Z", "E: <ip> since <time>"),
        ("E: two\n  lines of utf8 in x_1", "E: two lines of utf8 in x_1"),
        ("E: " + "long " * 100, ("E: " + "long " * 100)[:200]),
    ],
)
def test_an_error_is_normalised(text: str, normalised: str) -> None:
    assert normalise_error(text) == normalised


def test_the_id_of_a_cause_does_not_change() -> None:
    headers = {"warren-dead-reason": "failed", "warren-dead-queue": "billing", "warren-dead-error": "E: 7"}
    letter = ParkedMessage.of(Delivery(b"", "", "", "billing.dead", False, headers, {"type": "Order"}), 1)
    assert Cause.of(letter) == ("billing", "Order", "failed", "E: <number>")
    assert Cause.of(letter).id == "b022e1be"


async def test_letters_are_grouped_and_selected_by_the_api(new_app: NewApp, name: str, amqp_url: str) -> None:
    app = new_app()
    await park(app, name)
    async with app:
        await app.publish(b"raw", key=f"{name}.dead", message_id="m2")
    async with ParkingLot(amqp_url, f"{name}.dead") as lot:
        groups = await group(lot)
    assert [(each.count, each.example, each.cause.error) for each in groups] == [
        (1, "m2", ""),
        (1, "m1", "ValueError: <number>"),
    ]
    async with ParkingLot(amqp_url, f"{name}.dead") as lot:
        found = await find(lot, DeadLetterSelection(group=groups[1].id))
    assert [letter.message_id for letter in found] == ["m1"]


async def test_an_edit_keeps_what_it_does_not_change(new_app: NewApp, name: str, amqp_url: str) -> None:
    app = new_app()
    await park(app, name, tenant="north", colour="red")
    async with app, ParkingLot(amqp_url, f"{name}.dead") as lot:
        (letter,) = await find(lot)
        edit = LetterEdit(b'{"n":2}', headers={"colour": None}, properties={"type": "Order"})
        await replay_edited(lot, app, letter, edit)
    message = await take_one(amqp_url, name)
    assert (message.body, message.type, message.message_id) == (b'{"n":2}', "Order", "m1")
    assert (message.content_type, message.headers["tenant"], message.headers[EDITED]) == (
        "application/json",
        "north",
        1,
    )
    assert message.headers["sent"] == datetime(2026, 11, 23, tzinfo=UTC)
    assert "colour" not in message.headers
    assert await count_messages(amqp_url, [f"{name}.dead"]) == {f"{name}.dead": 0}


@pytest.mark.parametrize(
    ("headers", "properties", "edit", "error"),
    [
        ({}, {"content_type": "application/json"}, LetterEdit(b"no"), "is not JSON, as its content type"),
        ({}, {"content_encoding": "A256GCM"}, LetterEdit(b"1"), r"it is encoded \(A256GCM\)"),
        ({"warren-signature": b"s"}, {}, LetterEdit(b"1"), "the message is signed"),
        ({}, {}, LetterEdit(headers={"x-death": 1}), "the header 'x-death' cannot be edited"),
        ({}, {}, LetterEdit(properties={"message_id": "m2"}), "the property 'message_id' cannot be edited"),
    ],
)
def test_an_edit_that_no_consumer_would_accept_is_refused(
    headers: dict[str, object], properties: dict[str, object], edit: LetterEdit, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        edit.apply(Delivery(b"", "", "", "q", False, headers, properties))


async def test_an_edited_letter_that_cannot_be_published_stays(
    new_app: NewApp, name: str, amqp_url: str
) -> None:
    app = new_app()
    await park(app, name, **{"warren-key": f"{name}.gone", "warren-dead-queue": f"{name}.gone"})
    async with app:
        async with ParkingLot(amqp_url, f"{name}.dead") as lot:
            (letter,) = await find(lot)
            for to_exchange in (False, True):
                with pytest.raises(Unroutable):
                    await replay_edited(lot, app, letter, LetterEdit(b"2"), to_exchange=to_exchange)
        assert (await take_one(amqp_url, f"{name}.dead")).body == b'{"n":1}'


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while the editor is open", "before the publish", "before the confirm"])
async def test_an_edit_that_is_killed_loses_nothing(
    new_app: NewApp, name: str, amqp_url: str, tmp_path: Path, moment: str
) -> None:
    await park(new_app(), name)
    command = [sys.executable, "-m", "warren.cli.dispatch", "dlq", "edit", f"{name}.dead", "m1"]
    started = tmp_path / "started"
    editor = tmp_path / "editor"
    editor.write_text(f"#!/bin/sh\ntouch {started}\nexec sleep 600\n")
    editor.chmod(0o755)
    async with Proxy(amqp_url) as proxy:
        if moment != "while the editor is open":
            command += ["--set", "n=2"]
        until_publish = _UntilPublish()
        if moment == "before the confirm":
            # The broker gets the publish; its confirm does not arrive.
            proxy.to_client.rewrite = _Acks()
        elif moment == "before the publish":
            proxy.to_server.rewrite = until_publish
        with Child([*command, "--url", proxy.url], env={"VISUAL": str(editor)}) as edit:
            if moment == "while the editor is open":
                await eventually(lambda: started.exists() or not edit.running, "the editor is open")
            elif moment == "before the confirm":
                await eventually(lambda: _has(amqp_url, name, 1), "the edited message is in its queue")
            else:
                await eventually(lambda: until_publish.dropped, "the publish was sent")
            assert edit.running, edit.errors
            edit.kill()
        await eventually(lambda: _has(amqp_url, f"{name}.dead", 1), "the letter is back in its queue")
    if moment == "before the confirm":
        copy = await take_one(amqp_url, name)
        assert (copy.message_id, json.loads(copy.body)) == ("m1", {"n": 2})
    else:
        assert await _has(amqp_url, name, 0)
    async with App(amqp_url) as app, ParkingLot(amqp_url, f"{name}.dead") as lot:
        (letter,) = await find(lot)
        assert (letter.message_id, letter.delivery.body) == ("m1", b'{"n":1}')
        await replay_edited(lot, app, letter, LetterEdit(b'{"n":3}'))
    assert (await take_one(amqp_url, name)).body == b'{"n":3}'


class _Acks(FrameRewriter):
    """Rewriter that drops each basic.ack."""

    def _rewrite(self, frame: bytes) -> bytes:
        return b"" if method_of(frame) == (60, 80) else frame


class _UntilPublish:
    """Rewriter that passes nothing on from the first basic.publish on, and sets `dropped` then."""

    def __init__(self) -> None:
        self.dropped = False

    def __call__(self) -> Callable[[bytes], bytes]:
        def rewrite(data: bytes) -> bytes:
            self.dropped = self.dropped or b"\x00\x3c\x00\x28" in data  # Class 60, method 40.
            return b"" if self.dropped else data

        return rewrite


async def _has(url: str, queue: str, count: int) -> bool:
    return (await count_messages(url, [queue]))[queue] == count
