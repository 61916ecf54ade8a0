"""URIs of shovels: who they log in as, with TLS, and to RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.blocking_client import Channel, Connection
from tests.support.certificates import Authority
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from tests.support.rabbitmq import RabbitMQ
from tests.support.shovels import ShovelHost
from warren.broker import BrokerConfig
from warren.broker.connection.tls import TlsConfig
from warren.broker.shovel.shovel_uri import parse_uri, shown_uri


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def shovels(broker: InProcessBroker) -> ShovelHost:
    return ShovelHost(broker)


@pytest.fixture
def channel(broker: InProcessBroker) -> Iterator[Channel]:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("a", durable=True)
        channel.declare("b", durable=True)
        yield channel


def add_user(broker: InProcessBroker, name: str, read: str) -> None:
    assert broker.broker is not None
    access = broker.broker.access

    def add() -> None:
        access.users.add(name, "p@ss:word/")
        access.permissions.set(name, "/", "^$", "^b$|^amq.default$", read)

    broker.call(add)


# -- this broker


@pytest.mark.parametrize("login", ["ann@", "ann:p%40ss%3Aword%2F@"])
def test_a_user_in_the_uri_of_this_broker_needs_permissions(
    broker: InProcessBroker, shovels: ShovelHost, channel: Channel, login: str
) -> None:
    add_user(broker, "ann", read="^a$")
    channel.publish("a", "x")

    shovels.define(
        "allowed", src_uri=f"amqp://{login}", src_queue="a", dest_uri=f"amqp://{login}", dest_queue="b"
    )
    shovels.define("refused", src_uri=f"amqp://{login}", src_queue="b", dest_queue="a", reconnect_delay=0)

    wait_until(lambda: channel.ready("b") == 1, "the message has moved")
    assert shovels.reaches("terminated", "refused")["reason"] == '"failed to set up topology"'
    assert channel.ready("b") == 1


@pytest.mark.parametrize("login", ["nobody@", "guest:wrong@"])
def test_an_unknown_user_or_a_wrong_password_is_refused(
    shovels: ShovelHost, channel: Channel, login: str
) -> None:
    shovels.define(src_uri=f"amqp://{login}", src_queue="a", dest_queue="b", reconnect_delay=0)

    assert shovels.reaches("terminated")["reason"] == '"failed to connect to source"'


def test_without_a_user_messages_of_every_user_are_forwarded(shovels: ShovelHost, channel: Channel) -> None:
    channel.publish("a", "x", user_id="guest")

    shovels.define(src_queue="a", dest_queue="b")

    wait_until(lambda: channel.ready("b") == 1, "the message has moved")
    moved = channel.get("b", no_ack=True)
    assert moved is not None
    assert moved.properties.user_id == "guest"


def test_the_protocol_local_needs_a_password_if_the_uri_has_a_host(
    broker: InProcessBroker, shovels: ShovelHost, channel: Channel
) -> None:
    """The virtual host of such a URI is not checked when the shovel is defined."""
    add_user(broker, "ann", read="^a$")

    shovels.define(
        "wrong",
        src_protocol="local",
        src_uri="amqp://ann@x",
        src_queue="a",
        dest_queue="b",
        reconnect_delay=0,
    )
    shovels.define(
        "right", src_protocol="local", src_uri="amqp://ann:p%40ss%3Aword%2F@x", src_queue="a", dest_queue="b"
    )

    assert shovels.reaches("terminated", "wrong")["reason"] == '"failed to connect to source"'
    shovels.reaches("running", "right")


@pytest.mark.parametrize("host", ["a..b", "no-such-host.invalid"])
def test_a_host_that_cannot_be_found_is_a_failure(shovels: ShovelHost, channel: Channel, host: str) -> None:
    shovels.define(src_uri=f"amqp://{host}", src_queue="a", dest_queue="b", reconnect_delay=0)

    assert shovels.reaches("terminated")["reason"] == '"failed to connect to source"'


def test_an_unknown_virtual_host_is_refused(shovels: ShovelHost, channel: Channel) -> None:
    shovels.define(src_uri="amqp:///nope", src_queue="a", dest_queue="b", reconnect_delay=0)

    assert shovels.reaches("terminated")["reason"] == '"failed to connect to source"'


# -- TLS


@pytest.mark.processes
def test_a_certificate_is_verified(tmp_path: Path, shovels: ShovelHost, channel: Channel) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "/CN=server")
    tls = TlsConfig(listeners=("127.0.0.1:0",), certificate=certificate, key=key, ca=authority.certificate)
    config = BrokerConfig(handshake_timeout=PATIENCE, login_failure_delay=0, tls=tls)
    with InProcessBroker(config=config) as other:
        assert other.broker is not None
        address = next(bound.address for bound in other.broker.bound_addresses if bound.scheme == "amqps")
        uri = f"amqps://guest:guest@{address}"
        channel.publish("a", "x")

        shovels.define("distrusted", src_queue="a", dest_uri=uri, dest_queue="b", reconnect_delay=0)
        assert shovels.reaches("terminated", "distrusted")["reason"] == '"failed to connect to destination"'
        assert channel.ready("a") == 1
        trusted = f"{uri}?cacertfile={authority.certificate}"
        shovels.define("trusted", src_queue="a", dest_uri=trusted, dest_queue="b")
        shovels.reaches("running", "trusted")
        unverified = f"{uri}?verify=verify_none"
        shovels.define("unverified", src_uri=unverified, src_queue="b", dest_queue="c")
        shovels.reaches("running", "unverified")

        wait_until(lambda: channel.exists("c") and channel.ready("c") == 1, "the message went there and back")


# -- RabbitMQ


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_messages_move_to_rabbitmq_and_back(
    rabbitmq: RabbitMQ, shovels: ShovelHost, channel: Channel, mode: str
) -> None:
    for number in range(2000):
        channel.publish("a", str(number), headers={"n": number}, delivery_mode=2)
    large = b"x" * 300_000
    channel.publish("a", large)
    queue = f"shovelled-{mode}"

    shovels.define("there", src_queue="a", dest_uri=rabbitmq.url, dest_queue=queue, ack_mode=mode)
    shovels.define("back", src_uri=rabbitmq.url, src_queue=queue, dest_queue="b", ack_mode=mode)

    wait_until(lambda: channel.ready("b") == 2001, "all messages are back", 120)
    shovels.delete("there")
    shovels.delete("back")
    first = channel.get("b", no_ack=True)
    assert first is not None
    assert (first.body, first.headers["n"]) == (b"0", 0)
    assert channel.drain("b") == [*(str(number).encode() for number in range(1, 2000)), large]
    with Connection(rabbitmq.url) as connection:
        connection.channel().delete(queue)


# -- shown


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("amqp://", "amqp://"),
        ("amqp:///%2f", "amqp:///%2f"),
        ("amqp://user:secret@host", "amqp://host"),
        ("amqps://user:secret@host:5671/v?password=secret#f", "amqps://host:5671/v"),
        ("amqp://user:sec:ret@[::1]:5672/v", "amqp://::1:5672/v"),
        ("no uri://user:secret@host", "no uri://host"),
    ],
)
def test_a_uri_is_shown_without_credentials(uri: str, shown: str) -> None:
    assert shown_uri(uri) == shown


def test_a_uri_has_no_password_in_its_text() -> None:
    assert "secret" not in repr(parse_uri("amqp://user:secret@host?password=secret"))
