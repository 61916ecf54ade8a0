"""The programs of the pages for FastAPI, Litestar and Django, by their own test clients."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from litestar.testing import AsyncTestClient

from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import eventually, wait_until
from tests.support.proxy import Proxy
from warren.sdk import State
from warren.testing import Warren

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AMQP_URL", "memory://")
    monkeypatch.setenv("DATABASE_URL", f"sqlite+aiosqlite:///{tmp_path}/shop.sqlite")
    monkeypatch.setenv("DATABASE_FILE", str(tmp_path / "shop.sqlite"))


async def place_an_order(client: Any, shop: Any) -> None:
    placed = await client.post("/orders/42")
    assert (placed.status_code, placed.json()) == (202, {"order_id": 42})
    # The order exists already: the transaction is rolled back, and nothing is published.
    assert (await client.post("/orders/42")).status_code == 500

    async def billed() -> bool:
        return bool((await client.get("/invoices")).json() == [42])

    await eventually(billed, "the order is billed")
    assert (await client.get("/health")).json() == {"messaging": "ready"}


async def test_fastapi_with_its_lifespan() -> None:
    shop = load("fastapi_orders")
    transport = httpx.ASGITransport(shop.web, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        async with shop.web.router.lifespan_context(shop.web):
            await place_an_order(client, shop)
        assert shop.messaging.state is State.CLOSED


async def requests_during_an_outage(client: Any, shop: Any, proxy: Proxy) -> None:
    """Place orders while the broker is away, and check that they are billed when it is back."""
    placed = [await client.post(f"/orders/{number}") for number in range(3)]
    assert [response.status_code for response in placed] == [202] * 3
    assert (await client.get("/health")).json() == {"messaging": "connecting"}
    await eventually(lambda: shop.messaging.health().reason is not None, "an attempt to connect has failed")
    proxy.accept()

    async def billed() -> bool:
        return sorted((await client.get("/invoices")).json()) == [0, 1, 2]

    await eventually(billed, "the orders are billed")
    assert (await client.get("/health")).json() == {"messaging": "ready"}


@pytest.mark.parametrize("framework", ["fastapi", "litestar"])
async def test_a_service_starts_and_takes_requests_while_the_broker_is_away(
    monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    with InProcessBroker() as broker:
        async with Proxy(broker.url) as proxy:
            proxy.refuse()
            monkeypatch.setenv("AMQP_URL", proxy.url)
            shop = load(f"{framework}_orders")
            if framework == "litestar":
                async with AsyncTestClient(app=shop.web) as client:
                    await requests_during_an_outage(client, shop, proxy)
            else:
                transport = httpx.ASGITransport(shop.web)
                async with (
                    httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
                    shop.web.router.lifespan_context(shop.web),
                ):
                    await requests_during_an_outage(client, shop, proxy)


# --8<-- [start:fastapi]
async def test_fastapi_with_the_test_kit(warren: Warren) -> None:
    shop = load("fastapi_orders")
    await shop.create_tables()
    # httpx does not run the lifespan: the test kit runs the App, with a broker and a clock of the test's own.
    transport = httpx.ASGITransport(shop.web)
    async with (
        warren.running(shop.messaging),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        await client.post("/orders/42")
        await warren.advance(seconds=1)
        assert (await client.get("/invoices")).json() == [42]
    await shop.engine.dispose()


# --8<-- [end:fastapi]


# --8<-- [start:litestar]
async def test_litestar_with_its_lifespan() -> None:
    shop = load("litestar_orders")
    async with AsyncTestClient(app=shop.web, raise_server_exceptions=False) as client:
        await place_an_order(client, shop)
    assert shop.messaging.state is State.CLOSED


# --8<-- [end:litestar]


@pytest.fixture
def django_shop() -> Iterator[Any]:
    shop = load("django_orders")
    shop.create_tables()
    yield shop
    shop.messaging.sync.close()
    shop.connection.close()


# --8<-- [start:django]
def test_django_views_publish_and_plain_handlers_use_the_database(
    django_shop: Any,
) -> None:
    from django.test import Client, override_settings

    def invoices() -> list[int]:
        with django_shop.connection.cursor() as cursor:
            cursor.execute("SELECT id FROM invoices ORDER BY id")
            return [row[0] for row in cursor.fetchall()]

    with override_settings(ROOT_URLCONF=django_shop.__name__):
        client = Client(raise_request_exception=False)
        assert client.post("/orders/42").status_code == 202
        assert client.post("/orders/42").status_code == 500
        assert client.post("/announcements/43").status_code == 202
        wait_until(lambda: invoices() == [42, 43], "the orders are billed")


# --8<-- [end:django]


def test_the_django_command_runs_the_app(django_shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[bool] = []
    monkeypatch.setattr(type(django_shop.messaging), "run", lambda self: runs.append(True))
    django_shop.Consume().run_from_argv(["manage.py", "consume"])
    assert runs == [True]
