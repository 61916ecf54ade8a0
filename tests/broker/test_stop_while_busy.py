"""`warren broker` ends when it is told to, whatever its clients do, and keeps what it has confirmed."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.frames import BASIC_ACK, confirm, publish_frames
from tests.support.operator_cli import warren_ctl
from tests.support.polling import PATIENCE, wait_until
from tests.support.processes import free_port
from tests.support.raw_client import RawClient
from tests.support.raw_sockets import connect

pytestmark = pytest.mark.processes

PUBLISHERS = 4
LOGIN = b"Authorization: Basic " + base64.b64encode(b"guest:guest") + b"\r\n"


def stop_by_signal(broker: BrokerProcess) -> None:
    os.kill(broker.pid, signal.SIGTERM)


def stop_by_command(broker: BrokerProcess) -> None:
    found = warren_ctl(broker.data_dir)("stop")
    assert found.status == 0, found.errors


class Publisher:
    """Publisher of persistent messages to a queue of its own, as fast as the broker takes them, until it is cut off."""

    def __init__(self, url: str, queue: str, kind: str) -> None:
        self.queue = queue
        self.confirmed = 0
        self._message = publish_frames(1, "", queue, b"x" * 500, persistent=True)
        self._peer = RawClient(url)
        self._peer.connect().open()
        self._peer.declare(queue, durable=True, arguments={"x-queue-type": kind})
        self._peer.select_confirms()
        self._threads = [threading.Thread(target=self._publish), threading.Thread(target=self._count)]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._peer.send_bytes(self._message * 50)

    def _count(self) -> None:
        with contextlib.suppress(OSError):
            while (found := self._peer.read_frame()).method == BASIC_ACK:
                # Confirms come in order, as each message waits for the same disk.
                self.confirmed, _ = confirm(found)

    def is_busy(self) -> bool:
        return self.confirmed >= 200

    def end(self) -> None:
        """Wait until the broker has ended the connection, which ends both threads."""
        for thread in self._threads:
            thread.join(PATIENCE)
        self._peer.abort()


def busy_http(url: str) -> Iterator[socket.socket]:
    """Send the beginning of a request's body, a request for what is not read, and one for what takes long."""
    slow, greedy, working = connect(url), connect(url), connect(url)
    slow.sendall(
        b"PUT /api/queues/%2F/slow HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n" + LOGIN + b"\r\n{"
    )
    listed = b"GET /api/queues HTTP/1.1\r\nHost: x\r\n" + LOGIN + b"\r\n"
    greedy.sendall(listed * 50)
    wanted = b'{"count":20000,"ackmode":"ack_requeue_true","encoding":"auto"}'
    head = b"POST /api/queues/%2F/resting/get HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    working.sendall(head + LOGIN + b"Content-Length: %d\r\n\r\n" % len(wanted) + wanted)
    return iter((slow, greedy, working))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stop", [stop_by_signal, stop_by_command], ids=["signal", "command"])
def test_a_busy_broker_stops_and_keeps_what_it_confirmed(
    tmp_path: Path, stop: Callable[[BrokerProcess], None]
) -> None:
    port = free_port()
    with (
        contextlib.ExitStack() as stack,
        BrokerProcess(tmp_path, *PATIENT, "--management-port", str(port)) as broker,
    ):
        peer = stack.enter_context(RawClient(broker.url))
        peer.connect().open()
        peer.declare("resting", durable=True)
        for _ in range(20):
            peer.send_bytes(publish_frames(1, "", "resting", b"x") * 1000)
        peer.sync()
        peer.consume("resting")
        publishers = [
            Publisher(broker.url, f"busy.{number}", ("classic", "quorum")[number % 2])
            for number in range(PUBLISHERS)
        ]
        for sock in busy_http(f"http://127.0.0.1:{port}"):
            stack.enter_context(sock)
        for publisher in publishers:
            wait_until(publisher.is_busy, "it publishes")
        # Deliveries to `peer` are not read, and lists of queues neither.
        stop(broker)
        assert broker.child is not None
        assert broker.child.wait() == 0
        assert "Traceback" not in broker.child.errors
        broker.child = None
        for publisher in publishers:
            publisher.end()
        broker.start()
        with RawClient(broker.url) as again:
            again.connect().open()
            for publisher in publishers:
                _, kept, _ = again.declare_queue(publisher.queue, passive=True)
                assert kept >= publisher.confirmed
