"""Every view of messages and clients: accessible, light and dark, and as wide as a phone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import pytest

from tests.page.tools import needs_browser
from tests.page.traffic import HOSTILE, shop
from tests.page.viewer import Viewer
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import InProcessBroker

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [needs_browser, pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_views_are_accessible_and_fit_a_phone(
    browser: Browser, api: HttpApi, served: InProcessBroker, scheme: Literal["light", "dark"]
) -> None:
    for name in (HOSTILE, "x" * 200):
        api.put(f"queues/%2F/{quote(name, safe='')}", {"durable": True})
    with shop(served), Viewer.at(browser, api.base, scheme) as viewer:
        viewer.log_in()
        channel = api.get("channels?sort=name")[1]
        connection = channel["connection_details"]["name"]
        for address, heading in (
            ("", "Overview"),
            ("connections", "Connections"),
            (f"connections/{quote(connection, safe='')}", "Connection 127"),
            ("channels", "Channels"),
            (f"channels/{quote(channel['name'], safe='')}", "Channel 127"),
            ("exchanges", "Exchanges"),
            ("exchanges/%2F/orders", "Exchange orders"),
            ("exchanges/%2F/amq.default", "Exchange (AMQP default)"),
            ("queues", "Queues and Streams"),
            ("queues/%2F/orders.new", "Queue orders.new"),
            ("queues/%2F/orders.history", "Queue orders.history"),
            ("queues/%2F/orders.bulk", "Queue orders.bulk"),
            (f"queues/%2F/{quote(HOSTILE, safe='')}", HOSTILE),
        ):
            viewer.check_accessibility(address, heading, scheme)
        assert viewer.noise == []
