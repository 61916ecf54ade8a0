"""Data folders of all earlier file formats can be opened, and hold each message."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.frozen.write import LATER, MESSAGES, OLDEST, PENDING, STREAM, Found, declare, write
from tests.support.blocking_client import Channel, Connection, Message
from tests.support.in_process_broker import InProcessBroker
from tests.support.streams import consume, seen

FROZEN = Path(__file__).parent / "frozen"


@pytest.fixture(params=[True, False], ids=["clean", "crashed"])
def clean(request: pytest.FixtureRequest) -> bool:
    """Return whether the broker that wrote the folder was stopped cleanly."""
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


def check_message(message: Message | None, expected: Found, *, clean: bool | None) -> None:
    assert message is not None, expected
    assert message.body == expected.body
    if clean is not None:
        assert message.redelivered == (expected.redelivered or not clean), expected
    for name, value in expected.properties.items():
        assert getattr(message.properties, name) == value, (expected, name)
    for name, value in expected.headers.items():
        assert message.headers.get(name) == value, (expected, name)
    deaths = [
        (death["queue"], death["reason"], death["count"]) for death in message.headers.get("x-death", [])
    ]
    assert deaths == list(expected.deaths), expected


def check_content(channel: Channel, *, clean: bool | None, name: str = "") -> None:
    """Check the content of the folder of that name, message by message; the queues are empty afterwards.

    :param clean: the folder was stopped cleanly; None if it may have been, or not.
    """
    declare(channel)
    for queue, expected in MESSAGES.items():
        if name == OLDEST and queue in LATER:
            continue
        assert channel.ready(queue) == len(expected), queue
        for found in expected:
            check_message(channel.get(queue, no_ack=True), found, clean=clean)
        assert channel.ready(queue) == 0, queue
    if name != OLDEST:
        reading = channel.connection.channel()
        consume(reading, "stream", "first")
        assert seen(reading, len(STREAM)) == list(enumerate(STREAM))
        reading.close()
    assert not channel.exists("deleted")


def test_each_message_and_binding_of_a_frozen_folder_exists(opened: Channel, name: str, clean: bool) -> None:
    check_content(opened, clean=clean, name=name)
    for exchange, key, queues in (
        ("front", "key", ["left", "middle", "right"]),
        ("topic", "a.b.c", ["plain"]),
        ("topic", "none", ["left", "middle", "right"]),
        ("dead", "", ["grave"]),
    ):
        opened.publish(key, b"new", exchange=exchange)
        taken = {queue for queue in MESSAGES if opened.drain(queue)}
        assert taken == set(queues), (exchange, key)


def test_a_pending_dead_letter_of_a_frozen_folder_is_delivered(folder: Path) -> None:
    with InProcessBroker(folder) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        assert channel.drain("narrow") == [b"fills it"]
        broker.advance(2)
        check_message(channel.get("narrow", no_ack=True), PENDING, clean=True)
        assert channel.ready("careful") == 0


def test_messages_of_a_frozen_folder_expire(folder: Path) -> None:
    with InProcessBroker(folder) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.drain("late")
        for body in (b"lives", b"lives on"):
            # Jump, not second by second: pending dead letters are retried in each second.
            broker.jump(200 * 24 * 3600)
            broker.advance(0)
            assert channel.drain("late") == [body]


def test_a_frozen_folder_can_be_continued(folder: Path, name: str, clean: bool) -> None:
    """Open the folder, add a message, restart: the old and the new messages exist."""
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
            check_content(channel, clean=clean, name=name)


def test_the_script_writes_the_expected_content(tmp_path: Path) -> None:
    write(tmp_path / "data")
    with InProcessBroker(tmp_path / "data") as broker, Connection(broker.url) as connection:
        check_content(connection.channel(), clean=True)
