"""Connections to the broker under test, which end with the test, and a broker of the test's own with a clock in hand."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from tests.support.client import Channel, Closed, Connection
from tests.support.inprocess import InProcess

Connect: TypeAlias = Callable[[], Connection]


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
def name() -> str:
    """Of a queue or exchange that nothing else uses."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def inprocess() -> Iterator[InProcess]:
    """A broker in this process, in memory, whose clock the test moves."""
    with InProcess() as broker:
        yield broker
