"""Connections and channels on the management page."""

from __future__ import annotations

import pytest

from tests.page.tools import needs_browser
from tests.page.traffic import HOSTILE, connected, shop
from tests.page.viewer import Viewer
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import InProcessBroker

pytestmark = [needs_browser, pytest.mark.processes, pytest.mark.slow]


def test_connections_and_channels_are_listed_with_rates(served: InProcessBroker, viewer: Viewer) -> None:
    page = viewer.page
    with shop(served):
        viewer.open("connections", "Connections")
        row = page.locator("tbody tr", has_text="order-service")
        assert row.locator("td").all_inner_texts()[:4] == ["guest", "running", "no", "AMQP 0-9-1"]
        viewer.show_column("Details: Client")
        row.get_by_text("Orders · 2.1 · Python").wait_for()
        row.get_by_role("link").click()
        page.locator("h1", has_text="Connection 127.0.0.1:").wait_for()
        page.get_by_role("img", name="Data rates: From client").wait_for()
        page.locator("dd", has_text="basic.nack").wait_for()
        page.locator(".section", has_text="Channels (1)").get_by_role("link").click()
        page.locator("h1", has_text="Channel 127.0.0.1:").wait_for()
        page.locator("dd", has_text="Publisher confirms").wait_for()
        page.get_by_role("img", name="Message rates: Publish").wait_for()
        viewer.open("channels", "Channels")
        consumer = page.locator("tbody tr", has_not=page.locator("abbr", has_text="C"))
        assert consumer.locator("td").nth(4).inner_text() == "20"
        consumer.get_by_role("link").click()
        page.locator("tbody tr", has_text="worker-1").get_by_role("link", name="orders.new").click()
        page.locator("h1", has_text="Queue orders.new").wait_for()
        page.locator("tbody tr", has_text="worker-1").get_by_role("link").click()
        page.locator("h1", has_text="Channel 127.0.0.1:").wait_for()


def test_the_search_box_finds_clients_and_exchanges(served: InProcessBroker, viewer: Viewer) -> None:
    page = viewer.page
    with shop(served):
        for searched, option, heading in (
            ("orders", "Exchange orders", "Exchange orders"),
            ("127.0.0.1", "Connection 127.0.0.1", "Connection 127.0.0.1"),
            ("(1)", "Channel 127.0.0.1", "Channel 127.0.0.1"),
        ):
            page.get_by_role("combobox", name="Search everywhere").fill(searched)
            page.get_by_role("option", name=option).first.click()
            page.locator("h1", has_text=heading).wait_for()
        for key, heading in (("c", "Connections"), ("h", "Channels"), ("e", "Exchanges"), ("o", "Overview")):
            page.keyboard.press("g")
            page.keyboard.press(key)
            page.locator("h1", has_text=heading).wait_for()


def test_a_connection_is_closed_with_a_reason(api: HttpApi, served: InProcessBroker, viewer: Viewer) -> None:
    page = viewer.page
    with connected(served, HOSTILE) as channel:
        viewer.open("connections", "Connections")
        row = page.locator("tbody tr", has_text=HOSTILE)
        row.get_by_role("link").click()
        page.locator("b", has_text=HOSTILE).wait_for()
        viewer.show_all()
        page.get_by_label("Reason").fill("Wartung läuft – ✓")
        page.get_by_role("button", name="Force close").click()
        page.get_by_role("dialog").get_by_role("button", name="Close connection").click()
        closed = channel.closed()
        assert (closed.code, closed.text) == (320, "CONNECTION_FORCED - Wartung läuft – ✓")
        page.locator("h1", has_text="Connections").wait_for()
        page.get_by_text("There are no connections").wait_for()
    assert api.get("connections") == []


def test_the_view_of_a_connection_that_ended_says_so(served: InProcessBroker, viewer: Viewer) -> None:
    page = viewer.page
    with connected(served, "short-lived"):
        viewer.open("connections", "Connections")
        page.locator("tbody tr").get_by_role("link").click()
        page.locator("dd", has_text="running").wait_for()
        page.clock.install()
    page.get_by_label("Update").select_option("10")
    page.get_by_role("alert").get_by_text("There is no such object").wait_for()
    viewer.forgive("404")
