"""A disk that does not answer for a while: what clients and operators see."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp.commands import Basic

from tests.support.blocking_client import Connection
from tests.support.frozen_files import FrozenFiles, broker_on
from tests.support.in_process_broker import InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.polling import wait_until
from warren.broker.connection.flow_control import UNWRITTEN_LIMIT
from warren.broker.disk_delays import MOST_PASSED, DiskDelayMonitor
from warren.broker.store.log import writer_watch
from warren.broker.store.log.switch_interval import SwitchInterval

HOUR = 3600.0
BODY = b"x" * 1_000_000
BURST = 200
"""Messages of BODY: three times as many bytes as may wait to be written."""


@pytest.fixture
def files() -> FrozenFiles:
    return FrozenFiles()


@pytest.fixture
def broker(tmp_path: Path, files: FrozenFiles) -> Iterator[InProcessBroker]:
    with broker_on(files, tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def delays(broker: InProcessBroker) -> DiskDelayMonitor:
    """Return the monitor of the disk, which reports no delay until the test sets its threshold."""
    assert broker.broker is not None
    found = broker.broker._disk_delays
    assert found is not None
    found.threshold = math.inf
    return found


@pytest.fixture
def operator(broker: InProcessBroker) -> Operator:
    assert broker.data_dir is not None
    return Operator(warren_ctl(broker.data_dir), broker.url, is_warren=True)


def test_confirms_wait_for_a_frozen_disk_and_other_clients_do_not(
    broker: InProcessBroker, files: FrozenFiles
) -> None:
    with Connection(broker.url) as publishing, Connection(broker.url) as other:
        channel, quiet = publishing.channel(), other.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        files.thawed.clear()
        channel.publish("q", b"waits", delivery_mode=2)
        # Everything that needs no disk goes on, the message itself included.
        name = quiet.declare("", exclusive=True)
        quiet.publish(name, b"transient")
        assert quiet.drain(name) == [b"transient"]
        assert quiet.drain("q") == [b"waits"]
        # What the broker has sent to the publisher has arrived before this reply.
        assert channel.ready("q") == 0
        assert not channel.events
        files.thawed.set()
        assert channel.next_method(Basic.Ack).delivery_tag == 1


def test_operators_see_a_frozen_disk(
    broker: InProcessBroker,
    files: FrozenFiles,
    delays: DiskDelayMonitor,
    operator: Operator,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        assert operator("check_local_alarms") == ["warren@localhost reported no local alarms"]
        files.thawed.clear()
        channel.publish("q", b"waits", delivery_mode=2)
        delays.threshold = 0.5
        wait_until(lambda: "event=store.sync_delayed seconds=" in caplog.text, "the delay is logged")
        assert delays.delayed
        result = operator.run("-q", "check_local_alarms")
        assert result.status == 1
        assert result.errors.startswith("warren ctl: the disk has not answered for ")
        assert "Delays: 1" in operator("status")
        files.thawed.set()
        assert channel.next_method(Basic.Ack).delivery_tag == 1
        wait_until(
            lambda: "event=store.sync_resumed seconds=" in caplog.text, "the end of the delay is logged"
        )
        delays.threshold = math.inf
        assert operator("check_local_alarms") == ["warren@localhost reported no local alarms"]


def suspend(broker: InProcessBroker, delays: DiskDelayMonitor) -> tuple[float, float]:
    """Let the monitor check before and after an hour in which the broker did not run; return both delays in seconds."""

    def check_twice() -> tuple[float, float]:
        delays.check()
        before = delays.seconds
        delays._checked_at -= HOUR
        delays.check()
        return before, delays.seconds

    return broker.call(check_twice)


def test_an_idle_broker_has_no_delay(broker: InProcessBroker, delays: DiskDelayMonitor) -> None:
    delays.threshold = 1000.0
    # What the start has stored is on the disk.
    broker.flush_definitions()
    assert broker.broker is not None
    log = broker.broker._running.log
    assert log is not None
    wait_until(lambda: broker.call(lambda: log.is_synced), "nothing waits for the disk")
    assert suspend(broker, delays) == (0.0, 0.0)
    assert delays.delays == 0


def test_time_in_which_the_broker_is_suspended_is_no_delay(
    broker: InProcessBroker, files: FrozenFiles, delays: DiskDelayMonitor
) -> None:
    delays.threshold = 1000.0
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True)
        files.thawed.clear()
        channel.publish("q", b"waits", delivery_mode=2)
        wait_until(lambda: delays.seconds > 0, "the message waits for the disk")
        before, after = suspend(broker, delays)
        assert before < after <= before + MOST_PASSED
        assert delays.delays == 0
        files.thawed.set()


@pytest.mark.slow
def test_memory_is_bounded_while_the_disk_is_frozen(broker: InProcessBroker, files: FrozenFiles) -> None:
    running = broker.broker
    assert running is not None
    node = running._running
    log = node.log
    assert log is not None
    publishing = Connection(broker.url)
    channel = publishing.channel()
    channel.declare("q", durable=True)
    channel.confirm()
    files.thawed.clear()
    encoded = channel.encoded("q", BODY, delivery_mode=2)

    def flood() -> None:
        for _ in range(BURST):
            publishing.raw.send_bytes(encoded)

    sending = threading.Thread(target=flood, daemon=True)
    sending.start()
    wait_until(lambda: bool(broker.call(lambda: len(node.flow.paused))), "the publisher is paused")
    # What is on the way when the limit is reached is read, but no more.
    assert broker.call(lambda: int(log.unwritten_bytes)) < UNWRITTEN_LIMIT + 8_000_000
    assert sending.is_alive()
    files.thawed.set()
    sending.join(120)
    channel.settled_until(BURST)
    publishing.close()


def test_a_quiet_publisher_is_served_while_another_one_fills_the_log(
    broker: InProcessBroker, files: FrozenFiles
) -> None:
    """Publishers of little are paused only if all of them together send too much."""
    running = broker.broker
    assert running is not None
    flow = running._running.flow
    with Connection(broker.url) as loud, Connection(broker.url) as other:
        channel = loud.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        files.thawed.clear()
        burst = channel.encoded("q", BODY, delivery_mode=2) * BURST
        sending = threading.Thread(target=loud.raw.send_bytes, args=(burst,), daemon=True)
        sending.start()
        wait_until(lambda: bool(broker.call(lambda: len(flow.paused))), "the loud publisher is paused")
        quiet = other.channel()
        quiet.confirm()
        name = quiet.declare("", exclusive=True)
        for number in range(10):
            quiet.publish(name, b"%d" % number)
            assert quiet.next_method(Basic.Ack).delivery_tag == number + 1
        assert quiet.drain(name) == [b"%d" % number for number in range(10)]
        assert broker.call(lambda: len(flow.paused)) == 1
        flow.admitted_limit = 0
        quiet.publish(name, b"too much")
        wait_until(lambda: broker.call(lambda: len(flow.paused)) == 2, "the quiet publisher is paused, too")
        files.thawed.set()
        sending.join(120)
        channel.settled_until(BURST)
        assert quiet.next_method(Basic.Ack).delivery_tag == 11
        assert broker.call(lambda: len(flow.paused)) == 0


@pytest.mark.parametrize("end", ["written", "stop"])
def test_other_threads_run_sooner_while_a_batch_takes_long_to_be_written(
    broker: InProcessBroker, files: FrozenFiles, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The log's writer thread waits for the interpreter's lock, also while no bulk work is unfinished."""
    monkeypatch.setattr(writer_watch, "SWITCH_INTERVAL", SwitchInterval(is_allowed=True))
    usual = sys.getswitchinterval()
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        files.thawed.clear()
        channel.publish("q", b"1", delivery_mode=2)
        wait_until(lambda: sys.getswitchinterval() < usual, "the batch is slow")
        files.thawed.set()
        assert channel.settled(1) == [True]
        if end == "written":
            wait_until(lambda: sys.getswitchinterval() == usual, "no batch is slow any more")
    broker.stop()
    assert sys.getswitchinterval() == usual
