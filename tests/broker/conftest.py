"""Connections to the broker under test, closed after the test, and an in-process broker with a clock that the test moves."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.bulk_work import Bulk, bulk_of
from tests.support.in_process_broker import InProcessBroker
from tests.support.raw_client import RawClient
from tests.support.restarts import RestartableSession

Connect: TypeAlias = Callable[[], Connection]
RawConnect: TypeAlias = Callable[[], RawClient]


def pass_time(inprocess: InProcessBroker, seconds: float) -> None:
    """Have the broker's loop believe that so much real time has gone by: handshakes and heartbeats go by that."""
    loop = inprocess._loop
    before = loop.time
    inprocess.call(lambda: setattr(loop, "time", lambda: before() + seconds))


def stop_time(inprocess: InProcessBroker) -> None:
    """Have the broker's loop believe that no real time goes by any more: nothing that it waits for is overdue."""
    loop = inprocess._loop
    now = loop.time()
    inprocess.call(lambda: setattr(loop, "time", lambda: now))


@pytest.fixture
def connect(amqp_url: str) -> Iterator[Connect]:
    """Return a function that opens connections to the broker under test."""
    opened: list[Connection] = []

    def connect() -> Connection:
        opened.append(Connection(amqp_url))
        return opened[-1]

    yield connect
    for connection in opened:
        try:
            connection.close()
        except (Closed, OSError):
            connection.abort()


@pytest.fixture
def channel(connect: Connect) -> Channel:
    """Return a channel of a connection of its own."""
    return connect().channel()


@pytest.fixture
def dead_letter_queue(channel: Channel) -> str:
    """Return the name of a new queue for dead letters."""
    return channel.declare(exclusive=True)


@pytest.fixture
def name() -> str:
    """Return a name for a queue or exchange that nothing else uses."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def inprocess() -> Iterator[InProcessBroker]:
    """Run a broker in this process, in memory, with a clock that the test moves."""
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def timed(inprocess: InProcessBroker) -> Iterator[Channel]:
    """Return a channel to the broker with the clock that the test moves."""
    with Connection(inprocess.url) as connection:
        yield connection.channel()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[RestartableSession]:
    """Return a channel to a broker in this process on a data folder; the test stops or crashes that broker."""
    with InProcessBroker(tmp_path / "data") as broker:
        session = RestartableSession(broker)
        yield session
        session.connection.abort()


@pytest.fixture
def raw_connect(amqp_url: str) -> Iterator[RawConnect]:
    """Return a function that opens raw sockets to the broker under test; the handshake is left to the test."""
    opened: list[RawClient] = []

    def raw_connect() -> RawClient:
        opened.append(RawClient(amqp_url))
        return opened[-1]

    yield raw_connect
    for peer in opened:
        peer.abort()


@pytest.fixture
def peer(raw_connect: RawConnect) -> RawClient:
    """Return a connection that may break the protocol's rules, with channel 1 open."""
    return raw_connect().connect().open()


@pytest.fixture
def other(inprocess: InProcessBroker) -> Iterator[Channel]:
    """Return a channel of another connection to the in-process broker."""
    connection = Connection(inprocess.url)
    yield connection.channel()
    connection.abort()


@pytest.fixture
def bulk(inprocess: InProcessBroker) -> Bulk:
    """Return control of the in-process broker's bulk work."""
    return bulk_of(inprocess)
