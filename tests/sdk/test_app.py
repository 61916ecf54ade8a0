"""The App: URL, lifecycle, components, process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import App, Command, ConfigError, Delivery, Queue, Request, State
from warren.sdk.transport.aio_pika_connection import UrlConnection
from warren.sdk.transport.session import aiormq_url
from warren.wire.amqp_url import parse_url


@pytest.mark.parametrize("url", ["localhost:5672", "http://localhost", "amqp://u:secret@h:x", ""])
def test_an_invalid_url_is_a_one_line_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQP_URL", url or "nonsense")
    with pytest.raises(ConfigError, match=r"(?m)^not an AMQP URL: .+$") as caught:
        App(url or None)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("amqp://", ("guest", "guest", "localhost", 5672, "/")),
        ("amqp://u%61:p%40s%2Fs@h:1/shop?heartbeat=5", ("ua", "p@s/s", "h", 1, "shop")),
        ("amqps://h/%2F", ("guest", "guest", "h", 5671, "/")),
    ],
)
async def test_aiormq_and_the_broker_read_a_url_alike(url: str, address: tuple[object, ...]) -> None:
    target = aiormq_url(url, "me")
    connection = UrlConnection(target, address=parse_url(url))
    login = (connection.address.user, connection.address.password)
    assert (*login, target.host, target.port, connection.vhost) == address
    assert connection.heartbeat_timeout == (5 if "heartbeat" in url else 10)
    assert connection.connection_name == "me"


async def test_the_environment_names_the_broker(
    amqp_url: str, monkeypatch: pytest.MonkeyPatch, amqp_client: AsyncClient, name: str
) -> None:
    monkeypatch.setenv("AMQP_URL", amqp_url)
    app = App()
    app.declare(Queue(name, dead_letter_exchange=None))
    async with app:
        await app.publish(b"1", key=name)
        assert app.url == amqp_url
    await amqp_client.take(name)
    await amqp_client.channel.queue_delete(name)


async def test_without_a_url_the_broker_is_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class GetLength(Request[int], queue="lengths"):
        text: str

    monkeypatch.delenv("AMQP_URL", raising=False)
    app = App()

    @app.handle(GetLength)
    async def length(request: GetLength) -> int:
        return len(request.text)

    for _ in range(2):
        async with app:
            assert (app.url or "").startswith("amqp://")
            assert await app.call(GetLength(text="four")) == 4
        assert app.url is None


class Recorder:
    """A component that records the order of its calls."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.events: list[str] = []

    def register(self, app: App) -> None:
        self.app = app
        self.events.append("register")

        @app.handle(bytes, queue=self.queue)
        async def take(body: bytes) -> None:
            self.events.append("handle")

    async def on_start(self) -> None:
        await self.app.publish(b"1", key=self.queue)
        self.events.append("start")

    async def on_stop(self) -> None:
        await self.app.publish(b"2", key=self.queue)
        self.events.append("stop")


async def test_a_component_starts_and_stops_with_the_app_and_can_publish_meanwhile(
    make_app: MakeApp, name: str
) -> None:
    app, component = make_app(), Recorder(name)
    app.include(component)
    async with app:
        await eventually(lambda: "handle" in component.events, "the first message is handled")
        with pytest.raises(ConfigError, match="the App runs already"):
            app.include(Recorder(name))
    assert component.events == ["register", "start", "handle", "stop"]


async def test_a_call_from_another_event_loop_is_a_config_error(make_app: MakeApp) -> None:
    async with make_app() as app:

        def elsewhere() -> None:
            asyncio.run(app.publish(b"", key="q"))

        with pytest.raises(ConfigError, match="another event loop"):
            await asyncio.to_thread(elsewhere)


async def test_trace_context_is_sent_in_the_headers(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ping(Command, queue=name):
        pass

    app = make_app()
    seen: asyncio.Queue[tuple[int, object]] = asyncio.Queue()

    @app.handle(Ping)
    async def ping(message: Ping, delivery: Delivery) -> None:
        context = trace.get_current_span().get_span_context()
        seen.put_nowait((context.trace_id, delivery.headers.get("traceparent")))

    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    async with app:
        with trace.use_span(span):
            await app.publish(Ping())
        assert await seen.get() == (0xABC, f"00-{0xABC:032x}-{0xDEF:016x}-01")
        await app.publish(Ping())
        assert await seen.get() == (0, None)
    assert set_span_in_context(span)


SERVICE = """
import asyncio
from warren.sdk import App, Command

class Ping(Command, queue={queue!r}):
    number: int

app = App({url!r}, connect_timeout=60)

@app.handle(Ping)
async def ping(message: Ping) -> None:
    print("started", flush=True)
    await asyncio.sleep(0.5)
    print("finished", flush=True)

app.run()
print("stopped cleanly", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_the_process_gracefully(
    make_app: MakeApp, amqp_url: str, name: str, tmp_path: Path, number: signal.Signals
) -> None:
    class Ping(Command, queue=name):
        number: int

    script = tmp_path / "service.py"
    script.write_text(textwrap.dedent(SERVICE.format(queue=name, url=amqp_url)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", str(script), stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    assert process.stdout is not None
    async with make_app() as app, asyncio.timeout(150):
        await app.publish(Ping(number=1))
        assert await process.stdout.readline() == b"started\n"
        process.send_signal(number)
        assert await process.stdout.read() == b"finished\nstopped cleanly\n"
        assert await process.wait() == 0
    assert app.state is State.CLOSED
