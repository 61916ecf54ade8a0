"""TLS and mutual TLS on several listeners; login with a certificate is compared with RabbitMQ.

https://www.rabbitmq.com/docs/ssl, and rabbitmq_auth_mechanism_ssl
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import aio_pika
import pika
import pytest
from pamqp import commands

from tests.support.broker_definitions import definitions, load
from tests.support.certificates import Authority
from tests.support.in_process_broker import InProcessBroker
from tests.support.processes import free_port
from tests.support.rabbitmq import installed, rabbitmq_server
from tests.support.raw_client import RawClient
from warren.broker import BrokerConfig
from warren.broker.connection.tls import TlsConfig, TlsError, distinguished_name

SUBJECT = "/O=client, Ltd/CN=ann"
NAMED = "O=client\\, Ltd", "CN=ann"
ANN = ",".join(reversed(NAMED))
PREPARED = definitions(
    users=[
        {"name": ANN, "password": "unused", "tags": ""},
        {"name": "ann", "password": "unused", "tags": ""},
    ],
    vhosts=[],
    permissions=[(ANN, "/", ".*", ".*", ".*"), ("ann", "/", ".*", ".*", ".*")],
)


class Certificates(NamedTuple):
    authority: Authority
    server: tuple[Path, Path]
    client: tuple[Path, Path]
    stranger: tuple[Path, Path]
    """Issued by an unknown authority."""

    def config(self, **changes: object) -> TlsConfig:
        tls = TlsConfig(
            listeners=("127.0.0.1:0",),
            certificate=self.server[0],
            key=self.server[1],
            ca=self.authority.certificate,
            verify="optional",
        )
        return replace(tls, **changes)  # type: ignore[arg-type]

    def by_certificate(self, identity: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return the context of a client: the authorities that it trusts, and its certificate."""
        return self.authority.client(identity)


@pytest.fixture(scope="module")
def certificates(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    authority, other = Authority(folder), Authority(folder, "other")
    return Certificates(
        authority,
        authority.issue("server", "/CN=localhost"),
        authority.issue("client", SUBJECT),
        other.issue("stranger", SUBJECT),
    )


Start = Callable[..., InProcessBroker]


@pytest.fixture
def start(certificates: Certificates) -> Iterator[Start]:
    """Return a function that starts a broker with TLS for one test."""
    started: list[InProcessBroker] = []

    def start(*, mechanisms: tuple[str, ...] = ("PLAIN", "EXTERNAL"), **changes: object) -> InProcessBroker:
        config = BrokerConfig(listeners=(), tls=certificates.config(**changes), mechanisms=mechanisms)
        broker = InProcessBroker(config=config)
        started.append(broker)
        broker.__enter__()
        broker.call(lambda: load(broker, PREPARED))
        return broker

    yield start
    for broker in started:
        broker.__exit__(None, None, None)


def log_in_by_certificate(peer: RawClient) -> RawClient:
    peer.greet()
    peer.send(peer.start_ok(mechanism="EXTERNAL", response=""), 0)
    return peer


@pytest.mark.parametrize("kind", ["warren", "rabbitmq"])
def test_login_with_a_certificate(certificates: Certificates, start: Start, kind: str) -> None:
    if kind == "warren":
        talk_by_certificate(start().url, certificates)
        return
    if not installed():
        pytest.skip("rabbitmq-server is not installed")
    port = free_port()
    configuration = [
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        "ssl_options.cacertfile = {folder}/ca.pem",
        "ssl_options.certfile = {folder}/server.pem",
        "ssl_options.keyfile = {folder}/server.key",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = false",
        "auth_mechanisms.1 = PLAIN",
        "auth_mechanisms.2 = EXTERNAL",
    ]
    files = {
        "ca.pem": certificates.authority.certificate,
        "server.pem": certificates.server[0],
        "server.key": certificates.server[1],
    }
    with rabbitmq_server(
        configuration=configuration,
        definitions=PREPARED,
        plugins=["rabbitmq_auth_mechanism_ssl"],
        files=files,
        ports=[port],
    ):
        talk_by_certificate(f"amqps://guest:guest@127.0.0.1:{port}/", certificates)


def talk_by_certificate(url: str, certificates: Certificates) -> None:
    with RawClient(url, tls=certificates.by_certificate(certificates.client)) as peer:
        assert set(peer.greet().mechanisms.split()) == {"PLAIN", "EXTERNAL"}
        peer.send(peer.start_ok(mechanism="EXTERNAL", response=""), 0)
        peer.expect(commands.Connection.Tune)
        peer.tune()
        peer.call(commands.Connection.Open("/"), 0, commands.Connection.OpenOk)
        peer.open()
        # It is the user that its certificate says, and nobody else.
        peer.publish("amq.fanout", "", b"", commands.Basic.Properties(user_id=ANN))
        peer.sync()
    with RawClient(url, tls=certificates.by_certificate()) as peer:
        text = (
            "Login was refused using authentication mechanism EXTERNAL. For details see the broker logfile."
        )
        assert log_in_by_certificate(peer).refusal(0).text == f"ACCESS_REFUSED - {text}"
    with RawClient(url, tls=certificates.by_certificate()) as peer:
        peer.connect().open().sync()


def test_the_common_name_may_be_the_user(certificates: Certificates, start: Start) -> None:
    broker = start(login_from="common_name")
    with RawClient(broker.url, tls=certificates.by_certificate(certificates.client)) as peer:
        log_in_by_certificate(peer).expect(commands.Connection.Tune)
        peer.tune()
        peer.call(commands.Connection.Open("/"), 0, commands.Connection.OpenOk)
        peer.open()
        peer.publish("amq.fanout", "", b"", commands.Basic.Properties(user_id="ann"))
        peer.sync()


@pytest.mark.parametrize("identity", ["none", "stranger"])
def test_an_invalid_certificate_fails_the_tls_handshake(
    certificates: Certificates, start: Start, identity: str
) -> None:
    broker = start(verify="required")
    shown = certificates.stranger if identity == "stranger" else None
    # TLS 1.3 tells the client with its first read.
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        RawClient(broker.url, tls=certificates.by_certificate(shown)) as peer,
    ):
        peer.greet()
    with RawClient(broker.url, tls=certificates.by_certificate(certificates.client)) as peer:
        peer.connect().open().sync()


def test_external_is_not_offered_without_tls(certificates: Certificates) -> None:
    config = BrokerConfig(mechanisms=("PLAIN", "EXTERNAL"), tls=certificates.config())
    with InProcessBroker(config=config) as broker:
        assert broker.broker is not None
        assert [where.scheme for where in broker.broker.bound_addresses] == ["amqp", "amqps"]
        with RawClient(broker.url) as peer:
            assert peer.greet().mechanisms == "PLAIN"
            peer.send(peer.start_ok(mechanism="EXTERNAL", response=""), 0)
            assert peer.at_end()


def test_several_listeners(certificates: Certificates) -> None:
    config = BrokerConfig(
        listeners=("127.0.0.1:0", "[::1]:0") if socket.has_ipv6 else ("127.0.0.1:0", "0"),
        tls=certificates.config(listeners=("127.0.0.1:0", "localhost:0")),
    )
    with InProcessBroker(config=config) as broker:
        assert broker.broker is not None
        bound = broker.broker.bound_addresses
        assert len({where.address.port for where in bound}) == 4
        for where in bound:
            tls = certificates.by_certificate() if where.scheme == "amqps" else None
            with RawClient(f"{where.scheme}://guest:guest@{where.address}/", tls=tls) as peer:
                peer.connect().open().sync()


def test_only_configured_versions_are_accepted(certificates: Certificates, start: Start) -> None:
    broker = start(versions=("1.2",), ciphers="ECDHE-ECDSA-AES256-GCM-SHA384")
    context = certificates.by_certificate()
    parts = urlsplit(broker.url)
    with socket.create_connection((parts.hostname, parts.port or 0), 60) as sock:  # noqa: SIM117
        with context.wrap_socket(sock, server_hostname="127.0.0.1") as secured:
            assert secured.version() == "TLSv1.2"
            assert secured.cipher() is not None
            assert (secured.cipher() or ("",))[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with pytest.raises(ssl.SSLError), RawClient(broker.url, tls=context):
        pass


def test_a_client_without_tls_does_not_disturb_others(certificates: Certificates, start: Start) -> None:
    broker = start()
    parts = urlsplit(broker.url)
    with RawClient(broker.url, tls=certificates.by_certificate()) as peer:
        peer.connect().open()
        for hello in (b"AMQP\x00\x00\x09\x01", b"\x16\x03\x01", b"GET / HTTP/1.0\r\n\r\n"):
            with socket.create_connection((parts.hostname, parts.port or 0), 60) as sock:
                sock.sendall(hello)
        peer.sync()


def test_a_large_message_goes_both_ways(certificates: Certificates, start: Start) -> None:
    body = bytes(range(256)) * 4096 * 4
    with RawClient(start().url, tls=certificates.by_certificate()) as peer:
        peer.connect().open()
        queue = peer.declare(exclusive=True)
        peer.publish("", queue, body)
        peer.publish("", queue, b"small")
        peer.send(commands.Basic.Consume(queue=queue, no_ack=True))
        peer.expect(commands.Basic.ConsumeOk)
        assert peer.receive_message(commands.Basic.Deliver).body == body
        assert peer.receive_message(commands.Basic.Deliver).body == b"small"


async def test_aio_pika_over_tls(certificates: Certificates, start: Start) -> None:
    connection = await aio_pika.connect(
        start().url.replace("127.0.0.1", "localhost"), ssl_context=certificates.by_certificate()
    )
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"hello"), queue.name)
        message = await queue.get()
        assert message.body == b"hello"
        await message.ack()


def test_pika_over_tls_by_certificate(certificates: Certificates, start: Start) -> None:
    parts = urlsplit(start().url)
    parameters = pika.ConnectionParameters(
        "localhost",
        parts.port,
        credentials=pika.credentials.ExternalCredentials(),
        ssl_options=pika.SSLOptions(certificates.by_certificate(certificates.client), "localhost"),
        socket_timeout=60,
        stack_timeout=60,
    )
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"hello")
    assert channel.basic_get(queue, auto_ack=True)[2] == b"hello"
    connection.close()


@pytest.mark.processes
def test_a_renewed_certificate_is_used_for_the_next_connection(
    certificates: Certificates, start: Start, tmp_path: Path
) -> None:
    authority = certificates.authority
    (old, new) = (authority.issue(name, f"/CN={name}") for name in ("old", "new"))
    served = tmp_path / "server.pem", tmp_path / "server.key"
    for source, target in zip(old, served, strict=True):
        target.write_bytes(source.read_bytes())
    broker = start(certificate=served[0], key=served[1])
    assert broker.broker is not None
    secured = broker.broker._tls_context
    assert secured is not None

    def subject() -> object:
        with RawClient(broker.url, tls=certificates.by_certificate()) as peer:
            assert isinstance(peer._socket, ssl.SSLSocket)
            return (peer._socket.getpeercert() or {})["subject"]

    with RawClient(broker.url, tls=certificates.by_certificate()) as before:
        before.connect().open()
        assert subject() == ((("commonName", "old"),),)
        served[0].write_bytes(new[0].read_bytes())
        broker.call(secured.reload_if_changed)
        # Its key is still the old one's: nothing changes, nobody is turned away.
        assert subject() == ((("commonName", "old"),),)
        served[1].write_bytes(new[1].read_bytes())
        broker.call(secured.reload_if_changed)
        assert subject() == ((("commonName", "new"),),)
        before.sync()


# -- configuration


@pytest.mark.processes
def test_a_key_may_have_a_password(certificates: Certificates, start: Start) -> None:
    certificate, key = certificates.authority.issue("secret", "/CN=localhost", password="opensesame")
    broker = start(certificate=certificate, key=key, key_password="opensesame")
    with RawClient(broker.url, tls=certificates.by_certificate()) as peer:
        peer.connect()
    with pytest.raises(TlsError, match=r"tls_certificate .* cannot be used"):
        certificates.config(certificate=certificate, key=key, key_password="wrong").context()
    assert "opensesame" not in repr(broker.config)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"certificate": None}, "tls_listeners is set; it needs tls_certificate and tls_key"),
        ({"ca": None, "verify": "required"}, "tls_verify is required; it needs tls_ca"),
        ({"versions": ("1.1",)}, "tls_versions is 1.1; supported are: 1.2, 1.3"),
        ({"certificate": Path("missing.pem")}, "tls_certificate missing.pem .* No such file"),
        ({"ca": Path("missing.pem")}, "tls_ca missing.pem cannot be used: No such file"),
        ({"ciphers": "NOPE"}, "tls_ciphers is 'NOPE'"),
    ],
)
def test_unusable_tls_settings_are_refused(
    certificates: Certificates, changes: dict[str, object], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        certificates.config(**changes).context()


@pytest.mark.parametrize("listeners", [("x",), ("1:2:x",), ("127.0.0.1:70000",), ("host:",)])
def test_invalid_addresses_are_refused(listeners: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="an address is host:port"):
        BrokerConfig(listeners=listeners)


def test_a_configuration_without_listeners_is_refused() -> None:
    with pytest.raises(ValueError, match="no client could connect"):
        BrokerConfig(listeners=())


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ([[("commonName", "ann")], [("organizationName", "x")]], "O=x,CN=ann"),
        ([[("commonName", "a+b,c;d")]], "CN=a\\+b\\,c\\;d"),
        ([[("commonName", " #a ")]], "CN=\\ #a\\ "),
        ([[("commonName", "\u00e4")]], "CN=\\C3\\A4"),
        ([[("commonName", "a"), ("userId", "b")]], "CN=a+UID=b"),
    ],
)
def test_distinguished_names(subject: list[list[tuple[str, str]]], name: str) -> None:
    assert distinguished_name(subject) == name
