"""Apps on the broker under test, with names of the test's own, and what they declared removed afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

import pytest

from tests.sdk.telemetry_recorder import Recorded
from tests.support.async_client import AsyncClient, async_client
from tests.support.deletion import delete_exchange, delete_queue
from tests.support.proxy import Proxy
from warren.sdk import DEAD_LETTER_EXCHANGE, App, Exchange, Queue
from warren.wire.amqp_url import parse_url

PATIENT = (
    "app.blocking.UNDO_SECONDS",
    "consume.subscription.CANCEL_SECONDS",
    "transport.data_channel.LEAVE_SECONDS",
    "consume.get.ANSWER_SECONDS",
    "app.health_probe.REQUEST_SECONDS",
    "rpc.caller.SETUP_SECONDS",
    "app.runtime.FLUSH_SECONDS",
    "publish.transaction.CLOSE_SECONDS",
    "transport.session.CONNECT_SECONDS",
)
"""Raise the SDK's deadlines for answers of the broker, after which it reconnects: a busy machine is slow."""


class MakeApp(Protocol):
    def __call__(self, url: str | Sequence[str] | None = None, **settings: Any) -> App: ...


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """More patient than everybody's, as `warren` is: a machine that is busy with other tests may stand still."""
    for seconds in PATIENT:
        monkeypatch.setattr(f"warren.sdk.{seconds}", 60.0)


@pytest.fixture
def name() -> str:
    """Return a prefix for all that a test declares, so that tests may share a broker."""
    return f"t{uuid4().hex[:12]}"


@pytest.fixture
async def amqp_client(amqp_url: str) -> AsyncIterator[AsyncClient]:
    async with async_client(amqp_url) as client:
        yield client


@pytest.fixture
async def proxy(amqp_url: str) -> AsyncIterator[Proxy]:
    """Return a proxy in front of the broker under test that can cut, hold and refuse connections."""
    async with Proxy(amqp_url) as between:
        yield between


@pytest.fixture
async def make_app(amqp_url: str) -> AsyncIterator[MakeApp]:
    """`App` on the broker under test (or on another URL)."""
    made: list[App] = []

    def make(url: str | Sequence[str] | None = None, **settings: Any) -> App:
        app = App(url or amqp_url, **settings)
        made.append(app)
        return app

    yield make
    async with async_client(amqp_url) as client:
        for app in made:
            for item in app.topology:
                if isinstance(item, Queue):
                    await delete_queue(client.channel, item.name)
                elif isinstance(item, Exchange) and item.name != DEAD_LETTER_EXCHANGE:
                    await delete_exchange(client.channel, item.name)


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    found = Recorded()
    yield found
    found.meters.shutdown()
    found.tracers.shutdown()


@pytest.fixture
def traced(make_app: MakeApp, recorded: Recorded) -> MakeApp:
    return partial(make_app, telemetry=recorded.telemetry())


@pytest.fixture
def server_attributes(amqp_url: str) -> Mapping[str, object]:
    parts = parse_url(amqp_url)
    return {"server.address": parts.host, "server.port": parts.port}
