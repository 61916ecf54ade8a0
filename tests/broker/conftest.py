"""Connections to the broker under test, which end with the test, and a broker of the test's own with a clock in hand."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.broker_behaviour import Behaviour, behaviour
from tests.support.in_process_broker import InProcessBroker
from tests.support.raw_client import RawClient
from tests.support.restarts import RestartableSession

Connect: TypeAlias = Callable[[], Connection]
Talk: TypeAlias = Callable[[], RawClient]


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
    """Opens a connection to the broker under test."""
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
    """A channel of a connection of its own."""
    return connect().channel()


@pytest.fixture
def grave(channel: Channel) -> str:
    """The queue to which dead letters go."""
    return channel.declare(exclusive=True)


@pytest.fixture
def name() -> str:
    """Of a queue or exchange that nothing else uses."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def inprocess() -> Iterator[InProcessBroker]:
    """A broker in this process, in memory, whose clock the test moves."""
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def timed(inprocess: InProcessBroker) -> Iterator[Channel]:
    """A channel to the broker whose clock the test moves."""
    with Connection(inprocess.url) as connection:
        yield connection.channel()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[RestartableSession]:
    """A channel to a broker in this process on a data folder, which the test stops or crashes."""
    with InProcessBroker(tmp_path / "data") as broker:
        session = RestartableSession(broker)
        yield session
        session.connection.abort()


@pytest.fixture
def talk(amqp_url: str) -> Iterator[Talk]:
    """Opens a socket to the broker under test, over which nothing has been said yet."""
    opened: list[RawClient] = []

    def talk() -> RawClient:
        opened.append(RawClient(amqp_url))
        return opened[-1]

    yield talk
    for peer in opened:
        peer.abort()


@pytest.fixture
def peer(talk: Talk) -> RawClient:
    """A connection that may break rules, with channel 1 open."""
    return talk().connect().open()


@pytest.fixture(scope="session")
def server(amqp_url: str) -> Behaviour:
    """What the broker under test does where brokers differ on purpose."""
    with RawClient(amqp_url) as peer:
        peer.greet()
        return behaviour(peer.server)
