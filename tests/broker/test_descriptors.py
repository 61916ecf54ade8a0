"""Exhaustion of file descriptors: sockets that never speak, a full table of connections, and files that cannot be opened.

https://www.rabbitmq.com/docs/networking#open-file-handle-limit
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

import pytest
from pamqp.commands import Connection as ConnectionClass

from tests.broker.conftest import pass_time, stop_time
from tests.support.blocking_client import Connection
from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.certificates import Authority
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.polling import wait_until
from tests.support.processes import free_port
from tests.support.raw_client import RawClient
from warren.broker import BrokerConfig
from warren.broker.connection.admission import GRACE
from warren.broker.connection.descriptor_budget import DescriptorBudget
from warren.broker.store.file_system.os_files import OsFiles
from warren.broker.store.log.write_buffer import SEGMENT_SIZE

COUNT = 20
SOCKETS = 1500
DESCRIPTORS = 300
"""Descriptors that the broker may have open."""


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Connect, again and again while this client, which may stand still, is among those that give way."""
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = Connection(url)
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
        else:
            break
    with connection:
        yield connection


@contextmanager
def mute_sockets(url: str, count: int, source: str = "127.0.0.2") -> Iterator[list[socket.socket]]:
    """Connect sockets that send nothing, without waiting until the broker accepts them."""
    parts = urlsplit(url)
    with contextlib.ExitStack() as opened:
        found = []
        for _ in range(count):
            each = opened.enter_context(socket.socket())
            each.bind((source, 0))
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                each.connect((parts.hostname or "", parts.port or 0))
            found.append(each)
        yield found


def store_messages(connection: Connection, queue: str) -> None:
    """Publish messages that need more than one segment of the log."""
    channel = connection.channel()
    channel.declare(queue, durable=True)
    channel.confirm()
    for _ in range(COUNT):
        channel.publish(queue, bytes(SEGMENT_SIZE // COUNT + 1), delivery_mode=2)
    assert channel.settled(COUNT) == [True] * COUNT


@pytest.mark.slow
@pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.1"], ids=["other-address", "same-address"])
def test_sockets_that_never_speak_do_not_end_the_broker(tmp_path: Path, source: str) -> None:
    with BrokerProcess(tmp_path / "data", *PATIENT, descriptors=DESCRIPTORS) as broker:
        child = broker.child
        assert child is not None
        before = Connection(broker.url)
        with mute_sockets(broker.url, SOCKETS, source), connected(broker.url) as connection:
            store_messages(before, "stored")
            store_messages(connection, "stored as well")
            operator = Operator(warren_ctl(broker.data_dir), broker.url, is_warren=True)
            assert f"Total: {DESCRIPTORS}" not in "".join(operator("status"))
        before.close()
        assert child.running, child.errors
        errors = child.errors
        assert broker.stop() == 0
    assert "Traceback" not in errors
    assert errors.count("\n") < 40, errors
    assert "event=listener.unopened_closed" in errors


@pytest.mark.slow
def test_tls_handshakes_that_never_begin_do_not_end_the_broker(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "/CN=localhost")
    options = ("--tls-listeners", "127.0.0.1:0", "--tls-certificate", f"{certificate}", "--tls-key", f"{key}")
    broker = BrokerProcess(tmp_path / "data", *PATIENT, "--listeners", "", *options, descriptors=DESCRIPTORS)
    with broker:
        child = broker.child
        assert child is not None
        with mute_sockets(broker.url, SOCKETS):
            for _ in range(3):
                with RawClient(broker.url, tls=authority.client()) as peer:
                    peer.connect().open().sync()
        assert child.running, child.errors
        errors = child.errors
        assert broker.stop() == 0
    assert "Traceback" not in errors
    assert errors.count("\n") < 40, errors


@pytest.mark.slow
def test_http_connections_take_no_descriptor_of_amqp_or_the_store(tmp_path: Path) -> None:
    port = free_port()
    options = ("--management-port", str(port))
    with (
        BrokerProcess(tmp_path / "data", *PATIENT, *options, descriptors=DESCRIPTORS) as broker,
        contextlib.ExitStack() as opened,
    ):
        child = broker.child
        assert child is not None
        operator = Operator(warren_ctl(broker.data_dir), broker.url, is_warren=True)
        (sockets,) = (line for line in operator("status") if line.startswith("Sockets: "))
        most = int(sockets.rpartition(" ")[2])
        assert most >= DESCRIPTORS // 4
        connection = opened.enter_context(Connection(broker.url))
        for _ in range(most - 1):
            opened.enter_context(RawClient(broker.url)).connect()
        http = f"http://127.0.0.1:{port}"
        opened.enter_context(mute_sockets(http, SOCKETS, "127.0.0.2"))
        opened.enter_context(mute_sockets(http, SOCKETS, "127.0.0.3"))
        assert HttpApi(http).get("whoami")["name"] == "guest"
        store_messages(connection, "stored")
        assert f"Total: {DESCRIPTORS}" not in "".join(operator("status"))
        assert child.running, child.errors
        errors = child.errors
    assert "Traceback" not in errors
    assert "event=store.descriptors_short" not in errors
    assert errors.count("\n") < 60, errors


@pytest.fixture
def full_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[InProcessBroker]:
    """Run a broker that has descriptors for four connections."""
    monkeypatch.setattr("warren.broker.broker.descriptor_budget", lambda _: DescriptorBudget(104, 100))
    with InProcessBroker(tmp_path / "data") as broker:
        yield broker


def test_accepting_stops_at_the_bound_and_goes_on_when_a_connection_closes(
    full_table: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    # The first that waits does not give way to the second, however long this takes, and the log has one pause.
    stop_time(full_table)
    operator = Operator(warren_ctl(full_table.data_dir or Path()), full_table.url, is_warren=True)
    opened = [Connection(full_table.url) for _ in range(4)]
    waiting = [RawClient(full_table.url), RawClient(full_table.url)]
    for each in waiting:
        each.send_bytes(b"AMQP\x00\x00\x09\x01")
    admission = full_table.call(lambda: full_table.broker._admission if full_table.broker else None)
    assert admission is not None
    wait_until(lambda: not admission.accepting, "accepting has paused")
    assert not waiting[0].has_input()
    assert "Sockets: 4, limit: 4" in operator("status")
    assert "Accepting connections: no" in operator("status")
    assert operator("alarms")[1:] == ["descriptor budget\tfile_descriptor_limit"]
    assert operator.run("-q", "check_local_alarms").status == 1
    opened.pop().close()
    waiting[0].expect(ConnectionClass.Start)
    opened.pop().close()
    waiting[1].expect(ConnectionClass.Start)
    for connection in opened:
        connection.close()
    assert caplog.text.count("event=listener.accepting_paused") == 1
    for each in waiting:
        each.abort()
    wait_until(lambda: admission.sockets == 0, "the sockets are counted no more")
    assert "Accepting connections: yes" in operator("status")


def test_unopened_connections_give_way_to_those_that_open(
    full_table: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    stop_time(full_table)
    with mute_sockets(full_table.url, 4) as mute:
        admission = full_table.call(lambda: full_table.broker._admission if full_table.broker else None)
        assert admission is not None
        wait_until(lambda: admission.unopened == 4, "the mute sockets are accepted")
        peer = RawClient(full_table.url)
        peer.send_bytes(b"AMQP\x00\x00\x09\x01")
        wait_until(lambda: not admission.accepting, "accepting has paused")
        # Every client gets that long.
        pass_time(full_table, GRACE + 0.1)
        peer.expect(ConnectionClass.Start)
        peer.abort()
        for each in mute:
            each.setblocking(True)
        assert mute[0].recv(1) == b""
    assert "event=listener.unopened_closed count=1 peer=127.0.0.2" in caplog.text


def test_the_address_with_the_most_unopened_connections_gives_way() -> None:
    config = BrokerConfig(handshake_timeout=PATIENCE, max_unopened_connections=4)
    with InProcessBroker(config=config) as broker:
        stop_time(broker)
        with mute_sockets(broker.url, 1, "127.0.0.3") as patient, mute_sockets(broker.url, 3) as many:
            admission = broker.call(lambda: broker.broker._admission if broker.broker else None)
            assert admission is not None
            wait_until(lambda: admission.unopened == 4, "the mute sockets are accepted")
            pass_time(broker, GRACE + 0.1)
            with RawClient(broker.url) as peer:
                peer.connect()
            for each in (*patient, *many):
                each.setblocking(True)
            assert many[0].recv(1) == b""
            patient[0].sendall(b"AMQP\x00\x00\x09\x01")
            assert patient[0].recv(1) == b"\x01"


def test_clients_of_an_address_that_goes_on_opening_get_more_time() -> None:
    """Many clients behind one address reconnect at the same time."""
    config = BrokerConfig(handshake_timeout=PATIENCE, max_unopened_connections=2)
    with InProcessBroker(config=config) as broker:
        stop_time(broker)
        admission = broker.call(lambda: broker.broker._admission if broker.broker else None)
        assert admission is not None
        with ExitStack() as opened:
            slow, quick, late = (opened.enter_context(RawClient(broker.url)) for _ in range(3))
            wait_until(lambda: not admission.accepting, "accepting has paused")
            pass_time(broker, GRACE - 0.1)
            # This makes room for the third.
            quick.connect()
            wait_until(lambda: admission.sockets == 3, "the third client is accepted")
            waiting = opened.enter_context(RawClient(broker.url))
            wait_until(lambda: not admission.accepting, "accepting has paused")
            pass_time(broker, GRACE - 0.1)
            slow.connect()
            waiting.connect()
            late.connect()


def test_one_address_can_have_a_bound_of_its_own() -> None:
    config = BrokerConfig(handshake_timeout=PATIENCE, max_unopened_per_address=2)
    with InProcessBroker(config=config) as broker, mute_sockets(broker.url, 3) as mute:
        for each in mute:
            each.setblocking(True)
        assert mute[0].recv(1) == b""
        for each in mute[1:]:
            each.sendall(b"AMQP\x00\x00\x09\x01")
            assert each.recv(1) == b"\x01"


def test_behind_a_proxy_unopened_connections_count_for_the_address_in_the_header() -> None:
    config = BrokerConfig(
        handshake_timeout=PATIENCE,
        max_unopened_per_address=1,
        proxy_protocol=True,
        login_failure_delay=0,
    )
    with InProcessBroker(config=config) as broker:
        peers = []
        for number in range(3):
            peers.append(RawClient(broker.url))
            peers[-1].send_bytes(b"PROXY TCP4 10.1.2.%d 127.0.0.1 40000 5672\r\n" % (number // 2))
            peers[-1].greet()
        assert peers[0].at_end()
        for peer in peers[1:]:
            peer.send(peer.start_ok(), 0)
            assert peer.refusal(0).code == 403
        for peer in peers:
            peer.abort()


def test_refused_connections_are_not_counted_against_max_connections() -> None:
    """Sockets that never speak do not use up the connections that the operator allows."""
    config = BrokerConfig(handshake_timeout=PATIENCE, max_connections=1)
    with InProcessBroker(config=config) as broker, mute_sockets(broker.url, 3):
        admission = broker.call(lambda: broker.broker._admission if broker.broker else None)
        assert admission is not None
        wait_until(lambda: admission.unopened == 3, "the mute sockets are accepted")
        with RawClient(broker.url) as peer:
            peer.connect()


class FullTable(OsFiles):
    """A file system for whose files there is no descriptor, for as long as a test wants."""

    exhausted = False
    refused = 0

    def open(self, path: str) -> int:
        if self.exhausted:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open(path)


@pytest.mark.parametrize("queue_type", ["quorum", "stream"])
def test_a_file_without_a_descriptor_blocks_publishers_and_loses_nothing(
    tmp_path: Path, queue_type: str
) -> None:
    files = FullTable()
    with InProcessBroker(tmp_path / "data", files=files) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        files.exhausted = True
        channel.declare("q", durable=True, arguments={"x-queue-type": queue_type})
        channel.confirm()
        channel.publish("q", b"kept", delivery_mode=2)
        wait_until(lambda: broker.alarm == b"low on disk", "publishers are blocked")
        files.exhausted = False
        assert channel.settled(1) == [True]
        wait_until(lambda: not broker.alarm, "publishers are not blocked any more")
        assert broker.broker is not None
        assert broker.broker.failure is not None
        assert not broker.broker.failure.done()


def test_definitions_without_a_descriptor_wait_and_lose_nothing(tmp_path: Path) -> None:
    files = FullTable()
    with InProcessBroker(tmp_path / "data", files=files) as broker:
        with Connection(broker.url) as connection:
            channel = connection.channel()
            files.exhausted = True
            channel.declare("q", durable=True)
            wait_until(lambda: files.refused > 0, "the definitions need a file")
            channel.declare("another", durable=True)
            files.exhausted = False
            assert broker.broker is not None
            assert broker.broker.failure is not None
            assert not broker.broker.failure.done()
        broker.crash()
        with Connection(broker.url) as connection:
            assert connection.channel().exists("q")
            assert connection.channel().exists("another")


EXHAUST = """
import os, resource, sys
from warren.broker.store.file_system.os_files import OsFiles
from warren.broker.store.log.write_buffer import SEGMENT_SIZE
files, folder = OsFiles(), sys.argv[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
kept = []
try:
    while True:
        kept.append(files.open(f"{folder}/{len(kept)}"))
except OSError as error:
    assert error.errno == 24, error
assert len(kept) == 6, kept
files.write(kept[0], b"read", 0)
files.sync_folder(folder)
assert files.read(f"{folder}/0", 0, 4) == b"read"
files.sync_folder(folder)
opened = os.open
def open_unless_taken(path, *arguments, **options):
    # A socket takes each descriptor that becomes free.
    if path == os.devnull:
        taken.append(opened(path, *arguments, **options))
        raise OSError(24, "Too many open files")
    return opened(path, *arguments, **options)
os.open = open_unless_taken
for _ in range(20):
    assert files.read(f"{folder}/0", 0, 4) == b"read"
os.open = opened
for each in taken[:10]:
    os.close(each)
files.close(kept.pop())
for _ in range(2):
    kept.append(files.open(f"{folder}/{len(kept)}"))
"""


@pytest.mark.processes
def test_the_store_opens_files_when_other_code_has_taken_all_descriptors(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXHAUST, tmp_path], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("event=store.descriptors_short") == 1


def test_a_publisher_is_blocked_without_a_descriptor_and_stays_connected(tmp_path: Path) -> None:
    files = FullTable()
    with InProcessBroker(tmp_path / "data", files=files) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        files.exhausted = True
        channel.publish("q", b"waits", delivery_mode=2)
        wait_until(lambda: broker.alarm == b"low on disk", "the alarm is set")
        no_descriptor = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        with mock.patch("select.epoll", side_effect=no_descriptor):
            channel.publish("q", b"blocked", delivery_mode=2)
            assert isinstance(connection.event(), ConnectionClass.Blocked)
            files.exhausted = False
            assert isinstance(connection.event(), ConnectionClass.Unblocked)
        channel.settled_until(2)
