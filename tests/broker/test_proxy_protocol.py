"""PROXY protocol: the client's address is taken from the header, and connections without one are closed.

https://www.rabbitmq.com/docs/networking#proxy-protocol
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pamqp import commands

from tests.support.certificates import Authority
from tests.support.in_process_broker import InProcessBroker
from tests.support.raw_client import PROTOCOL_HEADER, RawClient
from warren.broker import BrokerConfig
from warren.broker.connection.proxy_protocol import SIGNATURE
from warren.broker.connection.tls import TlsConfig

HERE = b"PROXY TCP4 127.0.0.1 127.0.0.1 40000 5672\r\n"
AWAY = b"PROXY TCP4 10.1.2.3 127.0.0.1 40000 5672\r\n"


def binary(command: int, family: int, addresses: bytes) -> bytes:
    return SIGNATURE + bytes([0x20 | command, family]) + struct.pack(">H", len(addresses)) + addresses


def tcp4(client: str, extension: bytes = b"") -> bytes:
    packed = socket.inet_aton(client) + socket.inet_aton("127.0.0.1") + struct.pack(">HH", 40000, 5672)
    return binary(1, 0x11, packed + extension)


def tcp6(client: str) -> bytes:
    packed = [socket.inet_pton(socket.AF_INET6, each) for each in (client, "::1")]
    return binary(1, 0x21, b"".join(packed) + struct.pack(">HH", 40000, 5672))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with InProcessBroker(config=BrokerConfig(proxy_protocol=True)) as broker:
        yield broker.url


@pytest.mark.parametrize(
    "header",
    [
        HERE,
        b"PROXY TCP6 ::1 ::1 40000 5672\r\n",
        b"PROXY UNKNOWN\r\n",
        tcp4("127.0.0.1"),
        tcp4("127.0.0.1", b"\x03\x00\x04abcd"),
        tcp6("::1"),
        binary(0, 0, b""),
    ],
    ids=["v1", "v1-6", "v1-unknown", "v2", "v2-extension", "v2-6", "v2-local"],
)
def test_a_client_behind_a_proxy(url: str, header: bytes) -> None:
    with RawClient(url) as peer:
        peer.send_bytes(header)
        peer.connect().open().sync()


@pytest.mark.parametrize("header", [AWAY, tcp4("10.1.2.3"), tcp6("2001:db8::1")], ids=["v1", "v2", "v2-6"])
def test_loopback_users_are_checked_by_the_address_in_the_header(url: str, header: bytes) -> None:
    """`guest` may connect from loopback addresses only, wherever the proxy is; RabbitMQ 3.10 checks the proxy's address."""
    with RawClient(url) as peer:
        peer.send_bytes(header)
        peer.greet()
        peer.send(peer.start_ok(), 0)
        assert peer.refusal(0).code == 403


@pytest.mark.parametrize(
    "header",
    [
        PROTOCOL_HEADER + b"\0" * 8,
        b"PROXY TCP4 127.0.0.1\r\n",
        b"PROXY TCP4 nowhere 127.0.0.1 1 2\r\n",
        b"PROXY UDP4 127.0.0.1 127.0.0.1 1 2\r\n",
        b"PROXY " + b"x" * 200,
        SIGNATURE + b"\x31\x11\x00\x0c" + b"\0" * 12,
        binary(1, 0x11, b"\0" * 4),
    ],
    ids=["none", "v1-short", "v1-address", "v1-protocol", "v1-endless", "v2-version", "v2-short"],
)
def test_a_connection_without_a_valid_header_is_closed(header: bytes) -> None:
    with InProcessBroker(config=BrokerConfig(proxy_protocol=True)) as broker:
        with RawClient(broker.url) as peer:
            peer.send_bytes(header)
            assert peer.at_end()
        with RawClient(broker.url) as peer:
            peer.send_bytes(HERE)
            peer.connect()


def test_an_unfinished_header_times_out() -> None:
    config = BrokerConfig(proxy_protocol=True, handshake_timeout=0.2)
    with InProcessBroker(config=config) as broker, RawClient(broker.url) as peer:
        peer.send_bytes(b"PROXY TCP4 127.0")
        assert peer.at_end()


def test_a_stop_does_not_wait_for_a_header() -> None:
    with InProcessBroker(config=BrokerConfig(proxy_protocol=True)) as broker:
        peer = RawClient(broker.url)
    assert peer.at_end()
    peer.abort()


@pytest.mark.processes
def test_the_header_precedes_the_tls_handshake(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "/CN=localhost")
    tls = TlsConfig(listeners=("0",), certificate=certificate, key=key)
    with InProcessBroker(config=BrokerConfig(listeners=(), tls=tls, proxy_protocol=True)) as broker:
        parts = urlsplit(broker.url)
        for header, answer in ((HERE, commands.Connection.Tune), (AWAY, commands.Connection.Close)):
            with RawClient(broker.url) as peer:
                assert (peer._socket.getpeername()[1], parts.scheme) == (parts.port, "amqps")
                peer.send_bytes(header)
                peer.secure(authority.client())
                peer.greet()
                peer.send(peer.start_ok(), 0)
                peer.expect(answer)
