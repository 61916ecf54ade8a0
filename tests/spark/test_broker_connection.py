"""Connection of a Spark task: one-line errors, and heartbeats while its owner is busy."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.spark.conftest import Audit, Message
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority
from tests.support.polling import wait_until
from tests.support.processes import closed_port, free_port
from warren.core.blocking_connection import BlockingConnection
from warren.pipeline.broker_connection import Address, pipeline_errors
from warren.pipeline.errors import PipelineError
from warren.wire import methods
from warren.wire.amqp_url import parse_url


def declare_passively(url: str, queue: bytes, timeout: float) -> None:
    with pipeline_errors("cannot declare"):
        connection = Address(url, timeout).open()
        try:
            connection.call("queue.declare", 0, queue, True, False, False, False, False, b"")
        finally:
            connection.close()


def connection_error(url: str, queue: bytes = b"q", timeout: float = 60.0) -> str:
    """Return the error of an attempt to declare a queue passively."""
    with pytest.raises(PipelineError) as failed:
        declare_passively(url, queue, timeout)
    text = str(failed.value)
    assert "\n" not in text
    return text


def test_errors_name_the_cause(amqp_url: str, audit: Audit) -> None:
    url = parse_url(amqp_url)
    at = f"{url.host}:{url.port}"
    assert (
        connection_error(f"amqp://guest:s3cret@{at}")
        == "cannot declare: the broker refused the user name or the password"
    )
    assert connection_error(f"amqp://{at}/nowhere").endswith(
        ": the virtual host does not exist, or the user has no access to it"
    )
    assert "there is no such queue; declare it" in connection_error(amqp_url, b"pipeline.nowhere")
    with closed_port() as port:
        assert connection_error(f"amqp://127.0.0.1:{port}").endswith("cannot be reached: Connection refused")
    assert "does this port speak TLS?" in connection_error(f"amqps://{at}")
    assert "cannot be used on this machine" in connection_error(f"amqps://{at}?cafile=/no/such/file")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://localhost", "its scheme is 'http'; the form is amqp://user:password@host:port/vhost"),
        ("amqp://u:s3cret@localhost:no", "its host or port cannot be read; write @ / : # "),
        ("amqp://localhost?heartbeat=often", "heartbeat is 'often': it must be a number of seconds"),
    ],
)
def test_an_invalid_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message) as failed:
        Address(url)
    assert "s3cret" not in str(failed.value)


def test_a_url_is_shown_without_password_and_query() -> None:
    address = Address("amqp://u:s3cret@h:5672/v?cafile=x")
    assert address.masked_url == "amqp://u@h:5672/v"
    assert "s3cret" not in repr(address)


@pytest.mark.slow  # half a minute of heartbeats
def test_heartbeats_continue_while_the_owner_is_busy(amqp_url: str, audit: Audit) -> None:
    """The broker closes a connection that sends nothing, but not one whose idle owner relies on the heartbeat thread."""
    audit.publish([Message(b"x")])
    # Longer than this process stands still: then its link would send nothing, too.
    silent = BlockingConnection(parse_url(amqp_url), heartbeat=8)
    assert silent.heartbeat == 8
    silent.socket.setblocking(False)
    connection = Address(f"{amqp_url}?heartbeat=8").open()

    def closed() -> bool:
        try:
            return not silent.socket.recv(4096)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    wait_until(closed, "the broker gave the silent connection up", 120)
    silent.socket.close()
    declared = connection.call("queue.declare", 0, audit.name.encode(), True, False, False, False, False, b"")
    assert declared.number("message_count") == 1
    connection.close()
    connection.close()


@pytest.mark.processes
def test_the_url_names_the_certificate_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "/CN=localhost")
    port = free_port()
    options = ("--tls-listeners", f"127.0.0.1:{port}", "--tls-certificate", certificate, "--tls-key", key)
    with BrokerProcess(tmp_path / "broker", *map(str, options)):
        url = f"amqps://127.0.0.1:{port}"
        assert "its certificate is not trusted (" in connection_error(url)
        for query in (f"cafile={authority.certificate}", "no_verify_ssl=1"):
            connection = Address(f"{url}?{query}&heartbeat=60").open()
            connection.call("queue.declare", 0, b"pipeline.tls", False, False, False, False, False, b"")
            assert connection.receive(0.1) == b"", "nothing comes by itself"
            connection.send(methods.frame(1, "basic.get", 0, b"pipeline.tls", True))
            assert connection.receive(30)[7:11] == struct.pack(">HH", 60, 72), "basic.get-empty"
            connection.close()
