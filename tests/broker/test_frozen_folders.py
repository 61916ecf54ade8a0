"""A broker opens the data folders that earlier ones wrote, whatever form the files had, and finds each message."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.frozen.write import ASIDE, LATER, MESSAGES, OLDEST, STREAM, Found, declare, write
from tests.support.blocking_client import Channel, Connection, Message
from tests.support.in_process_broker import InProcessBroker
from tests.support.streams import consume, seen

FROZEN = Path(__file__).parent / "frozen"


@pytest.fixture(params=[True, False], ids=["clean", "crashed"])
def clean(request: pytest.FixtureRequest) -> bool:
    """How the broker that wrote the folder ended."""
    return bool(request.param)


@pytest.fixture(params=sorted(path.name for path in FROZEN.iterdir() if (path / "format").exists()))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(name: str, tmp_path: Path, clean: bool) -> Path:
    path = tmp_path / "data"
    shutil.copytree(FROZEN / name, path)
    if not clean:
        (path / "log" / "clean").unlink()
    return path


@pytest.fixture
def opened(folder: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Channel]:
    with InProcessBroker(folder) as broker, Connection(broker.url) as connection:
        yield connection.channel()
    assert "event=store.damage_found" not in caplog.text


def same(message: Message | None, expected: Found, *, clean: bool) -> None:
    assert message is not None, expected
    assert message.body == expected.body
    assert message.redelivered == (expected.redelivered or not clean), expected
    for name, value in expected.properties.items():
        assert getattr(message.properties, name) == value, (expected, name)
    for name, value in expected.headers.items():
        assert message.headers.get(name) == value, (expected, name)
    deaths = [
        (death["queue"], death["reason"], death["count"]) for death in message.headers.get("x-death", [])
    ]
    assert deaths == list(expected.deaths), expected


def check(channel: Channel, *, clean: bool, name: str = "") -> None:
    """All that the folder of that name holds, message by message; afterwards its queues are empty."""
    declare(channel)
    for queue, expected in MESSAGES.items():
        if name == OLDEST and queue in LATER:
            continue
        assert channel.ready(queue) == len(expected), queue
        for found in expected:
            same(channel.get(queue, no_ack=True), found, clean=clean)
        assert channel.ready(queue) == 0, queue
    if name != OLDEST:
        reading = channel.connection.channel()
        consume(reading, "stream", "first")
        assert seen(reading, len(STREAM)) == list(enumerate(STREAM))
        reading.close()
    assert not channel.exists("deleted")


def test_each_message_is_there(opened: Channel, name: str, clean: bool) -> None:
    check(opened, clean=clean, name=name)
    for exchange, key, queues in (
        ("front", "key", ["left", "middle", "right"]),
        ("topic", "a.b.c", ["plain"]),
        ("topic", "none", ["left", "middle", "right"]),
        ("dead", "", ["grave"]),
    ):
        opened.publish(key, b"new", exchange=exchange)
        taken = {queue for queue in MESSAGES if opened.drain(queue)}
        assert taken == set(queues), (exchange, key)


def test_what_was_kept_aside_finds_its_target(folder: Path) -> None:
    with InProcessBroker(folder) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        assert channel.drain("narrow") == [b"fills it"]
        broker.advance(2)
        same(channel.get("narrow", no_ack=True), ASIDE, clean=True)
        assert channel.ready("careful") == 0


def test_expiries_go_on(folder: Path) -> None:
    with InProcessBroker(folder) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.drain("late")
        for body in (b"lives", b"lives on"):
            # Not second by second: what is kept aside is tried again in each.
            broker.jump(200 * 24 * 3600)
            broker.advance(0)
            assert channel.drain("late") == [body]


def test_it_is_gone_on_with(folder: Path, name: str, clean: bool) -> None:
    """Opened, added to, closed and opened again: what was there is there, and so is what is new."""
    with InProcessBroker(folder) as broker:
        with Connection(broker.url) as connection:
            channel = connection.channel()
            channel.confirm()
            channel.publish("left", b"new", delivery_mode=2)
            channel.settled(1)
        broker.restart()
        with Connection(broker.url) as connection:
            channel = connection.channel()
            assert channel.drain("left") == [b"new"]
            check(channel, clean=clean, name=name)


def test_what_is_frozen_is_what_the_script_writes(tmp_path: Path) -> None:
    write(tmp_path / "data")
    with InProcessBroker(tmp_path / "data") as broker, Connection(broker.url) as connection:
        check(connection.channel(), clean=True)
