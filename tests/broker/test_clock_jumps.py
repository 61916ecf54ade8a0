"""Jumps of the machine's clock while a broker runs, and between two runs: which deadlines follow them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.support.blocking_client import Connection
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from warren.broker import BrokerConfig, VirtualClock
from warren.broker.model.clock import RealClock

HOUR = 3600.0
CONFIG = BrokerConfig(consumer_timeout=600_000, handshake_timeout=PATIENCE)
LATER = "dead-letters"


class MachineClock:
    """The wall clock of this machine, as all code of this process sees it."""

    def __init__(self) -> None:
        self.offset = 0.0
        self._read = time.time

    def read(self) -> float:
        return self._read() + self.offset


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> MachineClock:
    machine = MachineClock()
    monkeypatch.setattr(time, "time", machine.read)
    return machine


def start(path: Path) -> InProcessBroker:
    return InProcessBroker(path / "data", config=CONFIG, clock=cast(VirtualClock, RealClock()))


def names(broker: InProcessBroker) -> list[str]:
    """Return the names of the queues, without using any: that would postpone their end."""
    assert broker.broker is not None
    vhost = broker.broker._running.vhosts[b"/"].vhost
    return broker.call(lambda: [name.decode() for name in vhost.queues])


@pytest.fixture
def broker(machine: MachineClock, tmp_path: Path) -> Iterator[InProcessBroker]:
    with start(tmp_path) as broker:
        yield broker


@pytest.fixture
def connection(broker: InProcessBroker) -> Iterator[Connection]:
    with Connection(broker.url) as connection:
        yield connection


def test_a_jump_back_keeps_neither_messages_nor_queues_alive(
    broker: InProcessBroker, connection: Connection, machine: MachineClock
) -> None:
    channel = connection.channel()
    channel.declare(LATER)
    channel.declare("ttl", x_message_ttl=300, x_dead_letter_exchange="", x_dead_letter_routing_key=LATER)
    channel.declare("unused", x_expires=300)
    channel.publish("ttl", b"expires")
    machine.offset = -HOUR
    wait_until(lambda: channel.ready(LATER) == 1, "the message expires")
    wait_until(lambda: "unused" not in names(broker), "the unused queue expires")


def test_a_jump_forward_ends_nothing_early(connection: Connection, machine: MachineClock) -> None:
    channel = connection.channel()
    channel.declare("ttl", x_message_ttl=600_000)
    channel.declare("unused", x_expires=600_000)
    channel.publish("ttl", b"held")
    channel.publish("ttl", b"stays")
    held = channel.get("ttl")
    assert held is not None
    machine.offset = HOUR
    # Each of these looks at the deadlines.
    channel.publish("ttl", b"new")
    assert channel.ready("ttl") == 2
    assert channel.exists("unused")
    channel.ack(held.tag)
    assert channel.drain("ttl") == [b"stays", b"new"]


def test_times_that_clients_see_follow_the_machine(connection: Connection, machine: MachineClock) -> None:
    channel = connection.channel()
    channel.declare(LATER)
    channel.declare("source", x_dead_letter_exchange="", x_dead_letter_routing_key=LATER)
    machine.offset = HOUR
    channel.publish("source", b"rejected")
    taken = channel.get("source")
    assert taken is not None
    before = machine.read()
    channel.reject(taken.tag)
    wait_until(lambda: channel.ready(LATER) == 1, "the message is dead-lettered")
    letter = channel.get(LATER, no_ack=True)
    assert letter is not None
    died = letter.headers["x-death"][0]["time"].timestamp()
    assert int(before) <= died <= machine.read()


def test_a_ttl_counts_by_the_machine_over_a_restart(machine: MachineClock, tmp_path: Path) -> None:
    with start(tmp_path) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("ttl", durable=True, x_message_ttl=int(HOUR * 1000))
        channel.confirm()
        channel.publish("ttl", b"expires", delivery_mode=2)
        assert channel.settled(1) == [True]
    machine.offset = 2 * HOUR
    with start(tmp_path) as broker, Connection(broker.url) as connection:
        assert connection.channel().ready("ttl") == 0


@pytest.mark.parametrize("offset", [HOUR, -HOUR])
def test_a_jump_is_logged(
    broker: InProcessBroker, machine: MachineClock, offset: float, caplog: pytest.LogCaptureFixture
) -> None:
    machine.offset = offset

    def jumps() -> list[int]:
        return [int(found) for found in re.findall(r"event=broker.clock_jumped seconds=(\S+)", caplog.text)]

    # A process that stands still between the readings of the two clocks takes that for a jump, too.
    wait_until(lambda: any(abs(jump - offset) < 60 for jump in jumps()), "the jump is logged")
