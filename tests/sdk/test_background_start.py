"""Start of an App whose broker is not there: in the background, or waiting without a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.polling import eventually
from tests.support.processes import closed_port
from tests.support.proxy import Proxy
from warren.patterns import Outbox
from warren.sdk import (
    App,
    Capture,
    Command,
    ConfigError,
    Queue,
    Request,
    State,
    TopologyMismatch,
    TransportUnavailable,
)
from warren.wire.amqp_url import parse_url

PATIENCE = 120.0


@pytest.fixture
def dead_url() -> Iterator[str]:
    with closed_port() as port:
        yield f"amqp://127.0.0.1:{port}"


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [text for text in caplog.messages if text.startswith(f"event={name} ")]


async def test_handlers_begin_when_the_broker_is_there(
    make_app: MakeApp, proxy: Proxy, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "warren")
    proxy.refuse()
    app = make_app(proxy.url, start="background", longest_retry=0.1)
    states: list[State] = []
    app.on_state(states.append)
    handled: asyncio.Queue[bytes] = asyncio.Queue()
    order: list[str] = []
    app.on_start(lambda: order.append("on_start"))

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        handled.put_nowait(body)

    async with app:
        assert order == ["on_start"]
        assert (app.state, app.ready) == (State.CONNECTING, False)
        assert app.health().waiting == ("publisher", "consumer", name)
        assert events(caplog, "app.waiting")
        assert not events(caplog, "app.started")
        publishing = asyncio.create_task(app.publish(b"early", key=name, timeout=PATIENCE))
        await eventually(lambda: "cannot connect" in (app.health().reason or ""), "an attempt has failed")
        assert not publishing.done()
        proxy.accept()
        await publishing
        assert await asyncio.wait_for(handled.get(), PATIENCE) == b"early"
        await eventually(lambda: app.ready, "the App is ready")
        assert app.health().reason is None
        (started,) = events(caplog, "app.started")
        assert "queues=1" in started
        assert len(events(caplog, "consumer.started")) == 1
        assert app.statistics().reconnects == 0
        # From now on it is an App like any other.
        proxy.cut()
        await app.publish(b"late", key=name, timeout=PATIENCE)
        assert await asyncio.wait_for(handled.get(), PATIENCE) == b"late"
    assert states[0] is State.CONNECTING
    assert states[-1] is State.CLOSED
    assert len(events(caplog, "app.started")) == 1


async def test_an_app_that_never_connected_waits_for_nothing_when_it_stops(
    dead_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("warren.sdk.app.runtime.FLUSH_SECONDS", 3600.0)
    app = App(dead_url, start="background")

    @app.handle(bytes, queue="q")
    async def take(body: bytes) -> None: ...

    await app.start()
    with pytest.raises(TransportUnavailable, match="connect"):
        await app.publish(b"x", key="q", timeout=0.2)
    await asyncio.wait_for(app.stop(), PATIENCE)
    assert app.state is State.CLOSED
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


async def test_what_would_end_a_start_is_tried_again_in_the_background(
    amqp_url: str,
) -> None:
    parts = parse_url(amqp_url)
    wrong = f"amqp://{parts.user}:wrong@{parts.host}:{parts.port}/{quote(parts.virtual_host, safe='')}"
    async with App(wrong, start="background", longest_retry=0.1) as app:
        await eventually(lambda: "403" in (app.health().reason or ""), "the broker has refused the password")
        assert app.state is State.CONNECTING
    with pytest.raises(TransportUnavailable, match="403"):
        await App(wrong).start()


async def test_a_differing_queue_is_told_until_it_fits(make_app: MakeApp, name: str) -> None:
    async with make_app() as first:
        await first.declare_now(Queue(name, max_length=1))
    other = Queue(name, max_length=2)
    app = make_app(start="background", longest_retry=0.1)
    app.declare(other)
    async with app:
        await eventually(lambda: "max-length" in (app.health().reason or ""), "the difference is told")
        assert not app.ready
    waiting = make_app()
    waiting.declare(other)
    with pytest.raises(TopologyMismatch):
        await waiting.start()


async def test_calls_and_captured_events_wait_for_the_broker(
    make_app: MakeApp, proxy: Proxy, name: str
) -> None:
    class Double(Request[int], queue=f"{name}.double"):
        n: int

    proxy.refuse()
    capture = Capture(stream=f"{name}.events", within=0.05)
    app = make_app(proxy.url, start="background", longest_retry=0.1, capture=capture)
    app.declare(capture.queue())

    @app.handle(Double)
    async def double(request: Double) -> int:
        return 2 * request.n

    async with app:
        calling = asyncio.create_task(app.call(Double(n=4), timeout=PATIENCE))
        assert "capture" in app.health().waiting
        await eventually(lambda: app.health().reason is not None, "an attempt has failed")
        proxy.accept()
        assert await calling == 8
        await eventually(
            lambda: app.statistics().components["capture"].written > 0,
            "events are written",
        )


async def test_an_outbox_takes_messages_before_the_first_connection(
    make_app: MakeApp, proxy: Proxy, name: str, tmp_path: Path
) -> None:
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    class Work(Command, queue=f"{name}.work"):
        n: int

    engine = create_async_engine(
        f"sqlite+aiosqlite:///{tmp_path}/outbox.sqlite", connect_args={"timeout": 60}
    )
    sessions = async_sessionmaker(engine)
    proxy.refuse()
    app = make_app(proxy.url, start="background", longest_retry=0.1)
    outbox = Outbox(sessions)
    app.include(outbox)
    handled: asyncio.Queue[int] = asyncio.Queue()

    @app.handle(Work)
    async def work(message: Work) -> None:
        handled.put_nowait(message.n)

    async with app:
        for n in range(3):
            async with sessions.begin() as session:
                await outbox.add(session, Work(n=n))
        await eventually(lambda: app.health().reason is not None, "an attempt has failed")
        proxy.accept()
        assert [await asyncio.wait_for(handled.get(), PATIENCE) for _ in range(3)] == [0, 1, 2]
    await engine.dispose()


async def test_a_start_without_a_limit_waits_until_the_broker_is_there(
    make_app: MakeApp, proxy: Proxy
) -> None:
    proxy.refuse()
    app = make_app(proxy.url, connect_timeout=None, longest_retry=0.05)
    starting = asyncio.create_task(app.start())
    await eventually(lambda: proxy.accepted >= 5, "it tries again")
    assert not starting.done()
    proxy.accept()
    await asyncio.wait_for(starting, PATIENCE)
    assert app.ready
    await app.stop()


async def test_a_broker_of_the_app_itself_is_waited_for() -> None:
    async with App("memory://", start="background") as app:
        assert app.ready


def test_an_unknown_start_is_refused() -> None:
    with pytest.raises(ConfigError, match="start"):
        App("memory://", start="later")  # type: ignore[arg-type]


def test_a_thread_without_an_event_loop_starts_without_the_broker(dead_url: str) -> None:
    app = App(dead_url, start="background")
    with app.sync as sync:
        with pytest.raises(TransportUnavailable):
            sync.publish(b"x", key="q", timeout=0.1)
        assert not app.ready
    assert app.state is State.CLOSED
