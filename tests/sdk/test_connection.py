"""Connections: several hosts, states, probes, and queues that another connection still holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelClosed

from tests.sdk.conftest import MakeApp
from tests.support.async_client import async_client
from tests.support.polling import eventually
from tests.support.processes import closed_port
from tests.support.proxy import Proxy
from warren.sdk import App, ConfigError, HealthProbe, Queue, State, TopologyMismatch, TransportUnavailable
from warren.sdk.transport.host_failover import Hosts
from warren.sdk.transport.socket_stream import HEARTBEAT

NOBODY = "amqp://guest:guest@127.0.0.1:{}/"


@pytest.fixture
def dead_url() -> Iterator[str]:
    with closed_port() as port:
        yield NOBODY.format(port)


async def test_the_next_host_is_tried_after_each_failure(
    make_app: MakeApp, amqp_url: str, proxy: Proxy, name: str, dead_url: str
) -> None:
    async with Proxy(amqp_url) as second:
        app = make_app([dead_url, proxy.url, second.url], hosts="given", longest_retry=0.1)
        app.declare(Queue(name))
        async with app:
            assert (app.url, proxy.connections, second.connections) == (proxy.url, 2, 0)
            proxy.refuse()
            proxy.cut()
            await app.publish(b"next host", key=name)
            await eventually(lambda: app.ready, "it is ready on the next host")
            assert (app.url, proxy.connections, second.connections) == (second.url, 0, 2)
            second.refuse()
            proxy.accept()
            second.cut()
            await app.publish(b"round", key=name)
            await eventually(lambda: app.ready, "it is ready on the first host that lives, past the dead one")
            assert app.url == proxy.url


async def test_a_silent_host_is_left_for_the_next_one_after_two_heartbeats(
    make_app: MakeApp, amqp_url: str, proxy: Proxy, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A frozen machine keeps its connections, accepts new ones, and answers none."""
    async with Proxy(amqp_url) as second:
        app = make_app([f"{proxy.url}?heartbeat=1", f"{second.url}?heartbeat=1"], hosts="given")
        app.declare(Queue(name))
        async with app:
            proxy.to_client.hold()
            proxy.to_server.hold()
            await app.publish(b"next host", key=name)
            assert app.url == f"{second.url}?heartbeat=1"
        silent = [
            record.getMessage() for record in caplog.records if "connection.silent" in record.getMessage()
        ]
        assert silent
        assert all("seconds=2" in line for line in silent)
        # The host that answers nothing was not tried again.
        assert proxy.accepted == 2


async def test_a_quiet_connection_lives_by_its_heartbeats(
    make_app: MakeApp, proxy: Proxy, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(f"{proxy.url}?heartbeat=1")
    app.declare(Queue(name))
    heartbeats = 0

    def count(data: bytes) -> bytes:
        nonlocal heartbeats
        heartbeats += data.count(HEARTBEAT)
        return data

    proxy.to_client.rewrite = lambda: count
    async with app:
        await eventually(
            lambda: heartbeats >= 12, "each connection has got heartbeats for longer than its limit"
        )
        assert proxy.accepted == 2
    assert "connection.silent" not in caplog.text


@pytest.mark.parametrize("text", ["{a},{b}", "{a} , {b}", ["{a}", "{b}"]])
def test_several_hosts_are_a_list_or_separated_by_commas(text: str | list[str]) -> None:
    a, b = "amqp://u:p,w@a:1/v", "amqps://b"
    given = text.format(a=a, b=b) if isinstance(text, str) else [part.format(a=a, b=b) for part in text]
    hosts = Hosts.parse(given, "given")
    seen = []
    for _ in range(3):
        seen.append(hosts.current)
        hosts.failed(hosts.current)
        hosts.failed("amqp://elsewhere")
    assert seen == [a, b, a]


def test_hosts_are_shuffled_unless_their_order_is_given() -> None:
    urls = [f"amqp://host{number}" for number in range(20)]
    assert len({Hosts.parse(urls).current for _ in range(60)}) > 3
    assert {Hosts.parse(urls, "given").current for _ in range(60)} == {"amqp://host0"}


def test_the_environment_may_name_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQP_URL", "amqp://a,amqp://b")
    assert App(hosts="given").url == "amqp://a"


@pytest.mark.parametrize(("url", "error_text"), [([], "empty"), (["amqp://a", "http://b"], "http")])
def test_a_list_without_a_broker_is_refused(
    url: list[str], error_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AMQP_URL", raising=False)
    with pytest.raises(ConfigError, match=error_text):
        App(url)


async def test_if_no_host_answers_the_error_names_the_last(make_app: MakeApp) -> None:
    with closed_port() as first, closed_port() as second:
        app = make_app([NOBODY.format(port) for port in (first, second)], connect_timeout=10)
        with pytest.raises(TransportUnavailable, match=rf"127\.0\.0\.1:({first}|{second})"):
            await app.start()


async def test_each_change_of_state_is_reported_once(make_app: MakeApp, proxy: Proxy, name: str) -> None:
    app = make_app(proxy.url)
    states: list[State] = []

    def broken(state: State) -> None:
        raise RuntimeError("a callback harms nobody")

    app.on_state(broken)
    app.on_state(states.append)

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None: ...

    async with app:
        assert states == [State.CONNECTING, State.READY]
        proxy.cut()
        await eventually(lambda: not app.ready, "the loss is noticed")
        await eventually(lambda: app.ready, "it is ready again")
        assert states[2:] == [State.CONNECTING, State.READY]
    assert states[4:] == [State.CLOSING, State.CLOSED]


async def test_health_has_missing_parts_and_reason(make_app: MakeApp, proxy: Proxy, name: str) -> None:
    app = make_app(proxy.url)
    assert (app.health().state, app.health().ready) == (State.CLOSED, False)

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None: ...

    async with app:
        assert (app.health().ready, app.health().waiting, app.health().reason) == (True, (), None)
        proxy.refuse()
        proxy.cut()
        # One connection may be noticed before the other.
        missing = {"publisher", "consumer", name}
        await eventually(lambda: set(app.health().waiting) == missing, "both losses are noticed")
        await eventually(lambda: app.health().reason is not None, "an attempt has failed")
        health = app.health()
        assert (health.state, health.ready) == (State.CONNECTING, False)
        assert set(health.waiting) == missing
        proxy.accept()
        await eventually(lambda: app.health().ready, "it is healthy again")
        assert app.health().reason is None


async def test_the_probe_answers_over_http(make_app: MakeApp, proxy: Proxy, name: str) -> None:
    app, probe = make_app(proxy.url), HealthProbe(0)
    app.include(probe)

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None: ...

    async with app:
        await eventually(lambda: app.ready, "it is ready")
        assert await asked(probe, "GET /ready?verbose HTTP/1.1") == (
            200,
            {"state": "ready", "waiting": [], "reason": None},
        )
        assert (await asked(probe, "POST /ready HTTP/1.1"))[0] == 405
        assert (await asked(probe, "GET /elsewhere HTTP/1.1"))[0] == 404
        assert await asked(probe, "HEAD /live HTTP/1.1") == (200, None)
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: name in app.health().waiting, "the loss of the consumer is noticed")
        status, health = await asked(probe, "GET /ready HTTP/1.1")
        assert (status, health["state"], name in health["waiting"]) == (503, "connecting", True)
        assert (await asked(probe, "GET /live HTTP/1.1"))[0] == 200
        proxy.accept()
        taken = make_app(proxy.url)
        taken.include(HealthProbe(probe.port))
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{probe.port}"):
            await taken.start()


async def asked(probe: HealthProbe, line: str) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", probe.port)
    writer.write(f"{line}\r\nHost: here\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if body else None


async def test_an_exclusive_queue_is_declared_again_with_its_consumer(
    make_app: MakeApp, proxy: Proxy, name: str
) -> None:
    app = make_app(proxy.url)
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    @app.handle(bytes, queue=Queue(name, exclusive=True))
    async def take(body: bytes) -> None:
        seen.put_nowait(body)

    async with app:
        for body in (b"1", b"2"):
            await app.publish(body, key=name)
            assert await asyncio.wait_for(seen.get(), 60) == body
            proxy.cut()
            await eventually(lambda: not app.ready, "the loss is noticed")
            await eventually(lambda: app.ready, "the queue and its consumer are back")
        await app.declare_now(Queue(f"{name}.later", exclusive=True))
        await app.publish(b"3", key=f"{name}.later")


@pytest.mark.parametrize("reconnect", [False, True])
async def test_a_start_waits_for_a_queue_that_another_connection_holds(
    make_app: MakeApp, proxy: Proxy, amqp_url: str, name: str, reconnect: bool
) -> None:
    app = make_app(proxy.url, longest_retry=0.1, connect_timeout=150)

    @app.handle(bytes, queue=Queue(name, exclusive=True))
    async def take(body: bytes) -> None: ...

    async with async_client(amqp_url) as holder:
        if reconnect:
            await app.start()
            proxy.refuse()
            proxy.cut()
            await eventually(lambda: not app.ready, "the loss is noticed")
            await taken(holder.channel, name)
            proxy.accept()
            starting = None
        else:
            await taken(holder.channel, name)
            starting = asyncio.create_task(app.start())
        await eventually(lambda: "RESOURCE_LOCKED" in (app.health().reason or ""), "it is refused")
        assert not app.ready
        assert starting is None or not starting.done()
    try:
        await eventually(lambda: app.ready, "what held the queue is gone")
    finally:
        if starting is not None:
            await starting
        await app.stop()


async def taken(channel: AbstractChannel, name: str) -> None:
    """Our own exclusive queue, on another connection; the App's may take a moment to be gone."""
    async with asyncio.timeout(60):
        while True:
            try:
                await channel.declare_queue(name, durable=True, exclusive=True)
                return
            except ChannelClosed:
                await channel.reopen()


@pytest.mark.slow  # waits for 15 s
async def test_a_queue_that_stays_locked_fails_the_start_at_its_deadline(
    make_app: MakeApp, amqp_url: str, name: str
) -> None:
    app = make_app(connect_timeout=15)
    app.declare(Queue(name, exclusive=True))
    async with async_client(amqp_url) as holder:
        await holder.channel.declare_queue(name, exclusive=True)
        with pytest.raises(TopologyMismatch, match="RESOURCE_LOCKED") as locked:
            await app.start()
    assert (locked.value.reply_code, locked.value.retryable) == (405, True)
