"""A broker with the management page, and a browser that looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.page.viewer import Viewer
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from warren.broker import BrokerConfig

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser(starts_processes: None) -> Iterator[Browser]:
    """Start Chromium for the tests of a module: each has a context of its own.

    While it runs, this thread has a running event loop: asynchronous tests of other modules would fail.
    """
    from tests.site.browser import chromium

    with chromium() as started:
        yield started


@pytest.fixture
def served() -> Iterator[InProcessBroker]:
    """Run a broker with the HTTP API in this process, in memory."""
    config = BrokerConfig(management_port=0, handshake_timeout=PATIENCE, login_failure_delay=0)
    with InProcessBroker(config=config) as broker:
        yield broker


@pytest.fixture
def api(served: InProcessBroker) -> HttpApi:
    """Return a client of its HTTP API, as the user guest."""
    assert served.broker is not None
    return HttpApi(f"http://{served.broker.management_addresses[0]}")


@pytest.fixture
def viewer(browser: Browser, api: HttpApi) -> Iterator[Viewer]:
    """Return a person at the page, logged in as guest; errors of the console and requests to other hosts fail the test."""
    with Viewer.at(browser, api.base) as viewer:
        viewer.log_in()
        yield viewer
        assert viewer.noise == []
