"""A broker that has stopped leaves nothing active in a process that goes on."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from pamqp.commands import Connection as ConnectionClass

from tests.broker.conftest import stop_time
from tests.support.blocking_client import Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.raw_client import RawClient
from tests.support.restarts import PERSISTENT


def test_no_timer_of_a_stopped_broker_deletes_a_queue(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        with Connection(broker.url) as connection:
            connection.channel().declare("short", durable=True, x_expires=1000)
        broker.stop()
        broker.advance(2)
        broker.start()
        with Connection(broker.url) as connection:
            assert connection.channel().exists("short")


def test_a_stopped_broker_does_not_retry_its_dead_letters(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        with Connection(broker.url) as connection:
            channel = connection.channel()
            queue = channel.declare(
                "kept",
                durable=True,
                x_dead_letter_exchange="",
                x_dead_letter_routing_key="nobody",
                x_queue_type="quorum",
                x_overflow="reject-publish",
                x_dead_letter_strategy="at-least-once",
            )
            channel.publish(queue, "x", **PERSISTENT)
            message = channel.get(queue)
            assert message is not None
            channel.reject(message.tag)
            assert channel.ready(queue) == 0
        broker.stop()
        broker.advance(10)
        assert broker.clock.timers == 0


@pytest.mark.slow  # The broker waits 30 s of real time for the client to close its socket.
def test_a_client_that_never_reads_is_dropped_after_its_close(inprocess: InProcessBroker) -> None:
    """Otherwise its unread output and its socket would stay for ever."""
    with Connection(inprocess.url) as connection:
        channel = connection.channel()
        queue = channel.declare(exclusive=True)
        broker = inprocess.broker
        assert broker is not None
        listener = broker._listener
        assert listener is not None
        with RawClient(inprocess.url) as peer:
            peer.connect().open()
            peer._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(16):
                peer.publish("", f"{queue}-nowhere", bytes(1 << 20), mandatory=True)
            peer.send(ConnectionClass.Close(200, "", 0, 0), 0)
            wait_until(lambda: len(listener._transports) == 1, "the other socket is gone")


def test_a_publisher_reads_the_reason_of_a_stop() -> None:
    """A socket that is closed with unread input is reset, and the client never reads the reason."""
    with InProcessBroker() as broker, RawClient(broker.url) as peer:
        peer.connect().open()
        # Who is silent for a moment is let go, and threads that write and read may be given no time for that long.
        stop_time(broker)
        failed: list[OSError] = []
        stopped = threading.Event()

        def publish() -> None:
            try:
                while not stopped.is_set():
                    peer.publish("", "nowhere", bytes(100_000))
            except OSError as error:
                failed.append(error)

        publisher = threading.Thread(target=publish)
        publisher.start()
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        _, reason = peer.read_method()
        stopped.set()
        publisher.join()
        peer.send(ConnectionClass.CloseOk(), 0)
        stopping.join()
    assert isinstance(reason, ConnectionClass.Close)
    assert (reason.reply_code, failed) == (320, [])
