"""Connections that a broker rejects: typed errors at the first attempt, and retries where another attempt may succeed."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.certificates import Authority
from tests.support.polling import eventually
from tests.support.processes import closed_port, free_port
from tests.support.rabbitmq import RabbitMQ, rabbitmq_server
from warren.broker import Broker, BrokerConfig
from warren.broker.connection.tls import TlsConfig
from warren.core.blocking_connection import BlockingConnection, ClosedByBroker
from warren.sdk import App, ConfigError, ConnectionRejected, Queue, State, TlsFailed, TransportUnavailable
from warren.wire.amqp_url import parse_url

PATIENCE = 60.0
"""Seconds that an App tries to connect; a rejected one does not."""


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "warren.sdk")
    return caplog


@pytest.fixture
async def warren_url() -> AsyncIterator[str]:
    async with Broker(BrokerConfig(login_failure_delay=0)) as broker:
        broker.access.users.add("bare", "secret")
        yield broker.url


@pytest.fixture
def rabbitmq_url(rabbitmq: RabbitMQ) -> str:
    rabbitmq.run("add_user", "bare", "secret")
    return rabbitmq.url


@pytest.fixture(params=["warren", "rabbitmq"])
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a broker that has a user `bare` without permissions."""
    return str(request.getfixturevalue(f"{request.param}_url"))


def sdk_log(log: pytest.LogCaptureFixture) -> str:
    """Return what the SDK logged: the broker runs in the same process."""
    return "\n".join(each.getMessage() for each in log.records if each.name.startswith("warren.sdk"))


def changed(url: str, *, user: str = "guest", password: str = "guest", vhost: str = "/") -> str:
    parts = parse_url(url)
    return f"amqp://{user}:{password}@{parts.host}:{parts.port}/{quote(vhost, safe='')}"


async def rejection(url: str) -> ConnectionRejected:
    with pytest.raises(ConnectionRejected) as caught:
        await App(url, connect_timeout=PATIENCE).start()
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_port_where_no_broker_listens_is_named_with_what_to_do(host: str) -> None:
    with closed_port() as port, pytest.raises(TransportUnavailable) as caught:
        await App(f"amqp://{host}:{port}", connect_timeout=0.1).start()
    assert str(caught.value) == (
        f"cannot connect to {host}:{port}: connection refused; no broker listens there"
        " (`warren broker` starts one)"
    )


async def test_an_unknown_virtual_host_is_rejected_at_once(url: str, log: pytest.LogCaptureFixture) -> None:
    error = await rejection(changed(url, vhost="nope"))
    assert (error.reply_code, error.retryable) == (530, False)
    assert "530 NOT_ALLOWED: vhost nope not found" in str(error).replace("'nope'", "nope")
    assert "create the virtual host" in str(error)
    assert sdk_log(log) == ""


@pytest.mark.parametrize("vhost", ["%2F", "%252F", "a%20b", ".", "..", "a/../b", "a/./b", "größe"])
async def test_a_virtual_host_is_decoded_once_and_is_no_path(url: str, vhost: str) -> None:
    error = await rejection(changed(url, vhost=vhost))
    assert f"530 NOT_ALLOWED: vhost {vhost} not found" in str(error).replace(f"'{vhost}'", vhost)


async def test_an_empty_password_is_no_default(url: str) -> None:
    error = await rejection(changed(url, password=""))
    assert (error.reply_code, error.retryable) == (403, False)


async def test_a_user_without_rights_is_rejected_at_once(url: str, log: pytest.LogCaptureFixture) -> None:
    error = await rejection(changed(url, user="bare", password="secret"))
    assert (error.reply_code, error.retryable) == (530, False)
    assert "530 NOT_ALLOWED: access to vhost '/' refused for user 'bare'" in str(error)
    assert "permissions" in str(error)
    assert sdk_log(log) == ""


async def test_a_wrong_password_is_rejected_at_once(url: str, log: pytest.LogCaptureFixture) -> None:
    error = await rejection(changed(url, password="wrong-secret"))
    assert (error.reply_code, error.retryable) == (403, False)
    assert "403 ACCESS_REFUSED: the broker refused the user or password (the user is 'guest')" in str(error)
    lines = traceback.format_exception(error)
    assert "wrong-secret" not in "".join(lines)
    assert len("".join(lines).splitlines()) < 30
    assert not any(foreign in "".join(lines) for foreign in ("aiormq", "pamqp", "tenacity", "direct cause"))
    assert sdk_log(log) == ""


async def test_a_limit_of_connections_is_tried_again(log: pytest.LogCaptureFixture) -> None:
    """A limit is no mistake in the URL: another connection may end."""
    async with Broker(BrokerConfig(max_connections=2)) as broker, App(broker.url):
        late = App(broker.url, connect_timeout=PATIENCE)
        starting = asyncio.create_task(late.start())
        await eventually(
            lambda: "node connection limit (2) is reached" in sdk_log(log), "the limit is logged"
        )
        assert not starting.done()
        starting.cancel()
        await asyncio.wait((starting,))
    assert "530 NOT_ALLOWED" in sdk_log(log)


async def test_after_a_first_connection_a_rejection_is_tried_again(log: pytest.LogCaptureFixture) -> None:
    """A running App survives a mistake of an operator: the user gets its password back, and the App goes on."""
    async with Broker(BrokerConfig(login_failure_delay=0)) as broker:
        broker.access.users.add("ann", "first")
        broker.access.permissions.set("ann", "/", ".*", ".*", ".*")
        app = App(changed(broker.url, user="ann", password="first"), longest_retry=0.1)
        async with app:
            broker.access.users.change_password("ann", "second")
            assert broker._node is not None
            broker._node.close_connections("operator", user="ann")
            # Both connections try again; one of them may learn of its loss later.
            await eventually(
                lambda: "403 ACCESS_REFUSED" in str(app.health().reason), "the error is reported"
            )
            assert app.state is State.CONNECTING
            assert "403 ACCESS_REFUSED" in sdk_log(log)
            broker.access.users.change_password("ann", "first")
            await eventually(lambda: app.ready, "the App is connected again")


# -- virtual hosts with names that a URL library would change


@pytest.mark.parametrize("vhost", ["%2F", "a/../b"])
async def test_the_virtual_host_of_the_url_is_opened(vhost: str) -> None:
    async with Broker() as broker:
        broker.virtual_hosts.add(vhost)
        broker.access.permissions.set("guest", vhost, ".*", ".*", ".*")
        app = App(changed(broker.url, vhost=vhost))
        app.declare(Queue("here", dead_letter_exchange=None))
        async with app:
            assert await has_queue(changed(broker.url, vhost=vhost), "here")
            assert not await has_queue(broker.url, "here")


async def test_the_virtual_host_of_the_url_is_opened_on_rabbitmq(rabbitmq: RabbitMQ) -> None:
    rabbitmq.ctl("add_vhost", "a/%2F/..")
    rabbitmq.ctl("set_permissions", "-p", "a/%2F/..", "guest", ".*", ".*", ".*")
    app = App(changed(rabbitmq.url, vhost="a/%2F/.."))
    app.declare(Queue("here", dead_letter_exchange=None))
    async with app:
        assert await has_queue(changed(rabbitmq.url, vhost="a/%2F/.."), "here")
    rabbitmq.ctl("delete_vhost", "a/%2F/..")


async def test_an_embedded_broker_names_its_virtual_host_in_its_url() -> None:
    async with Broker(BrokerConfig(default_vhost="shop/%2F")) as broker:
        assert parse_url(broker.url).virtual_host == "shop/%2F"
        async with App(broker.url):
            pass


async def has_queue(url: str, name: str) -> bool:
    """Return whether a queue exists in the virtual host of a URL, read with a client that is no part of the SDK."""

    def ask() -> bool:
        with closing(BlockingConnection(parse_url(url))) as connection:
            try:
                connection.call("queue.declare", 0, name.encode(), True, False, False, False, False, b"")
            except ClosedByBroker:
                connection.send("channel.close-ok")
                return False
            return True

    return await asyncio.to_thread(ask)


# -- TLS


@pytest.fixture(scope="module")
def authority(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("server", "/CN=localhost")


Ports = tuple[int, int]
"""Ports of one broker: without TLS, and with it."""


@pytest.fixture
async def warren_ports(server: tuple[Path, Path]) -> AsyncIterator[Ports]:
    tls = TlsConfig(listeners=("127.0.0.1:0",), certificate=server[0], key=server[1])
    async with Broker(BrokerConfig(tls=tls)) as broker:
        plain, secure = (bound[1].port for bound in broker.bound_addresses)
        yield plain, secure


@pytest.fixture
def rabbitmq_ports(server: tuple[Path, Path], authority: Authority, rabbitmq: RabbitMQ) -> Iterator[Ports]:
    port = free_port()
    lines = [
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        "ssl_options.cacertfile = {folder}/ca.pem",
        "ssl_options.certfile = {folder}/server.pem",
        "ssl_options.keyfile = {folder}/server.key",
        "ssl_options.verify = verify_none",
    ]
    files = {"ca.pem": authority.certificate, "server.pem": server[0], "server.key": server[1]}
    with rabbitmq_server(configuration=lines, files=files, ports=[port]) as one:
        yield one.port, port


@pytest.fixture(params=["warren", "rabbitmq"])
def ports(request: pytest.FixtureRequest) -> Ports:
    found: Ports = request.getfixturevalue(f"{request.param}_ports")
    return found


async def test_tls_where_there_is_none_and_none_where_there_is_tls_are_typed_errors(
    ports: Ports, authority: Authority, log: pytest.LogCaptureFixture
) -> None:
    plain, secure = ports
    for url, advice in (
        (f"amqps://127.0.0.1:{plain}", "does not speak TLS: use amqp:// or the port for TLS"),
        (f"amqp://127.0.0.1:{secure}", "speaks TLS: use amqps:// or the port without TLS"),
        (f"amqps://127.0.0.1:{secure}", "certificate cannot be verified"),
    ):
        with pytest.raises(TlsFailed) as caught:
            await App(url, connect_timeout=PATIENCE).start()
        assert advice in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not caught.value.retryable
    assert sdk_log(log) == ""
    async with App(f"amqps://localhost:{secure}?cafile={authority.certificate}"):
        pass


async def test_a_tls_file_that_cannot_be_used_is_named_at_once(
    ports: Ports, authority: Authority, tmp_path: Path
) -> None:
    _, secure = ports
    no_certificate = tmp_path / "empty.pem"
    no_certificate.write_text("nothing\n")
    certificate, _ = authority.issue("right", "/CN=right")
    _, foreign_key = authority.issue("wrong", "/CN=wrong")
    _, encrypted_key = authority.issue("locked", "/CN=locked", password="long enough")
    for query, text in (
        ("cafile=/nope/ca.pem", "cafile '/nope/ca.pem' of the URL cannot be read: No such file"),
        ("capath=/nope", "capath '/nope' of the URL cannot be read: No such file"),
        (f"cafile={no_certificate}", f"cafile '{no_certificate}' of the URL has no certificate"),
        ("certfile=/nope/me.pem", "certfile '/nope/me.pem' of the URL cannot be read"),
        (f"certfile={certificate}&keyfile={foreign_key}", "must be in PEM format and belong together"),
        (f"certfile={certificate}&keyfile={encrypted_key}", "and the key must have no password"),
    ):
        with pytest.raises(TlsFailed, match="cannot connect to localhost") as caught:
            await App(f"amqps://localhost:{secure}?{query}", connect_timeout=PATIENCE).start()
        assert text in str(caught.value)
        assert "\n" not in str(caught.value)


async def test_a_certificate_that_cannot_be_verified_is_refused_with_advice_for_the_reason(
    authority: Authority, server: tuple[Path, Path], tmp_path: Path
) -> None:
    foreign = Authority(tmp_path)
    tls = TlsConfig(listeners=("127.0.0.1:0",), certificate=server[0], key=server[1])
    async with Broker(BrokerConfig(tls=tls)) as broker:
        port = broker.bound_addresses[1][1].port
        for url, advice in (
            (f"amqps://localhost:{port}", "name its authority with ?cafile=FILE in the URL"),
            (
                f"amqps://localhost:{port}?cafile={foreign.certificate}",
                "the authorities that the URL names did not issue it; name the one that did with ?cafile=FILE",
            ),
            (
                # A short form of 127.0.0.1, which is not in the certificate.
                f"amqps://127.1:{port}?cafile={authority.certificate}",
                "connect to a name that the certificate contains; 127.1 is not one",
            ),
        ):
            with pytest.raises(TlsFailed, match="certificate cannot be verified") as caught:
                await App(url, connect_timeout=PATIENCE).start()
            assert str(caught.value).endswith(f"): {advice}")


async def test_a_missing_client_certificate_is_named(
    server: tuple[Path, Path], authority: Authority, log: pytest.LogCaptureFixture
) -> None:
    tls = TlsConfig(
        listeners=("127.0.0.1:0",),
        certificate=server[0],
        key=server[1],
        ca=authority.certificate,
        verify="required",
    )
    async with Broker(BrokerConfig(tls=tls)) as broker:
        port = broker.bound_addresses[1][1].port
        app = App(f"amqps://localhost:{port}?cafile={authority.certificate}", connect_timeout=PATIENCE)
        starting = asyncio.create_task(app.start())
        # The alert of the broker may be lost behind the reset of the socket, so that the attempt is repeated.
        await eventually(
            lambda: starting.done() or "client certificate" in sdk_log(log), "the attempt has failed"
        )
        starting.cancel()
        await asyncio.wait((starting,))
        failure = "" if starting.cancelled() else str(starting.exception())
        text = failure or sdk_log(log)
        assert "a client certificate (mutual TLS)" in text
        assert "add certfile=FILE&keyfile=FILE to the parameters of the URL" in text


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("amqps://h?ca=/x.pem", "unknown parameter 'ca': known are auth, cadata, cafile"),
        ("amqp://h?heartbeet=5", "unknown parameter 'heartbeet'"),
        ("amqp://h?cafile=/x.pem", "names cafile, but amqp:// does not use TLS: write amqps://"),
        ("amqp://h, amqps://h?verify=0", "unknown parameter 'verify'"),
    ],
)
def test_a_parameter_of_the_url_that_would_be_ignored_is_an_error(url: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        App(url)
    assert text in str(caught.value)


async def test_an_app_logs_in_with_a_client_certificate(
    server: tuple[Path, Path], authority: Authority
) -> None:
    certificate, key = authority.issue("ann", "/CN=ann")
    tls = TlsConfig(
        listeners=("127.0.0.1:0",),
        certificate=server[0],
        key=server[1],
        ca=authority.certificate,
        verify="required",
        login_from="common_name",
    )
    async with Broker(BrokerConfig(tls=tls, mechanisms=("EXTERNAL",), login_failure_delay=0)) as broker:
        broker.access.users.add("ann", "")
        broker.access.permissions.set("ann", "/", ".*", ".*", ".*")
        port = broker.bound_addresses[1][1].port
        own = f"auth=external&cafile={authority.certificate}&certfile={certificate}&keyfile={key}"
        async with App(f"amqps://localhost:{port}?{own}", connect_timeout=PATIENCE) as app:
            assert app.ready


async def test_a_port_that_closes_silently_may_be_a_broker_that_starts(
    log: pytest.LogCaptureFixture,
) -> None:
    """A load balancer without a broker behind it accepts and closes: that passes."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        starting = asyncio.create_task(App(f"amqp://127.0.0.1:{port}", connect_timeout=PATIENCE).start())
        await eventually(lambda: "event=connection.attempt_failed" in sdk_log(log), "the failure is logged")
        starting.cancel()
        await asyncio.wait((starting,))
        assert starting.cancelled() or isinstance(starting.exception(), TransportUnavailable)
