"""The frame of the management page: login, tabs, lists, charts, search, keys, updates."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.page.tools import needs_browser
from tests.page.traffic import HOSTILE
from tests.page.viewer import Viewer
from tests.support.http_client import HttpApi

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = [needs_browser, pytest.mark.processes, pytest.mark.slow]


def declare(api: HttpApi, name: str, **arguments: object) -> None:
    from urllib.parse import quote

    api.put(f"queues/%2F/{quote(name, safe='')}", {"durable": True, "arguments": arguments})


def test_a_wrong_password_is_refused_in_words(browser: Browser, api: HttpApi) -> None:
    with Viewer.at(browser, api.base) as viewer:
        viewer.log_in(password="wrong")
        viewer.page.get_by_role("alert").get_by_text("Name or password is wrong").wait_for()
        assert viewer.violations() == []
        assert viewer.page.evaluate("sessionStorage.length") == 0


def test_the_login_lasts_for_the_tab_and_sets_no_cookie(viewer: Viewer) -> None:
    viewer.page.locator("h1", has_text="Overview").wait_for()
    viewer.page.reload()
    viewer.page.locator("h1", has_text="Overview").wait_for()
    assert viewer.page.context.cookies() == []
    viewer.page.get_by_role("button", name="Log out").click()
    viewer.page.get_by_label("Username").wait_for()
    assert viewer.page.evaluate("sessionStorage.length") == 0


def test_the_overview_has_totals_charts_and_the_node(viewer: Viewer) -> None:
    viewer.page.locator(".totals", has_text="Exchanges 7").wait_for()
    viewer.page.get_by_role("img", name="Queued messages").wait_for()
    for seconds in ("60", "3600", "28800", "86400"):
        with viewer.page.expect_request(re.compile(rf"lengths_age={seconds}\b")):
            viewer.page.get_by_label("Charts cover").select_option(seconds)
    viewer.page.locator("dd", has_text="no").first.wait_for()


def test_the_list_of_queues_is_filtered_ordered_and_shows_features(api: HttpApi, viewer: Viewer) -> None:
    declare(api, "orders", **{"x-message-ttl": 1000, "x-max-length": 5, "x-dead-letter-exchange": "dead"})
    declare(api, "audit")
    viewer.open("queues", "Queues")
    rows = viewer.page.locator("tbody tr")
    row = rows.filter(has_text="orders")
    assert row.locator("abbr").all_inner_texts() == ["D", "TTL", "Lim", "DLX"]
    viewer.page.get_by_role("button", name="Name", exact=True).click()
    viewer.page.get_by_role("button", name="Name", exact=True).click()
    viewer.page.locator("tbody tr:first-child", has_text="orders").wait_for()
    viewer.page.get_by_label("Filter by name").fill("^aud.t$")
    viewer.page.get_by_label("Regex").check()
    viewer.page.locator(".pager", has_text="1–1 of 1 (2 without").wait_for()
    viewer.page.get_by_text("Columns", exact=True).click()
    viewer.page.get_by_label("Messages: Persistent").check()
    viewer.page.get_by_role("columnheader", name="Persistent").wait_for()
    viewer.page.reload()
    viewer.page.get_by_role("columnheader", name="Persistent").wait_for()
    viewer.page.locator(".pager", has_text="1–1 of 1").wait_for()


def test_ten_thousand_queues_need_few_requests_and_rows(api: HttpApi, viewer: Viewer) -> None:
    queues = [
        {"name": f"queue-{n:05}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        for n in range(10_000)
    ]
    assert api.ask("POST", "definitions", {"queues": queues}).status == 204
    viewer.requests.clear()
    viewer.open("queues", "Queues")
    viewer.page.locator(".pager", has_text="1–100 of 10,000").wait_for()
    assert sum("/api/queues" in each for each in viewer.requests) == 1
    assert viewer.page.locator("tbody tr").count() == 100
    viewer.page.get_by_role("button", name="Next").click()
    viewer.page.locator("tbody tr", has_text="queue-00100").wait_for()
    viewer.page.get_by_label("Filter by name").fill("09999")
    viewer.page.locator(".pager", has_text="1–1 of 1").wait_for()


def test_a_queue_is_added_used_and_deleted(api: HttpApi, viewer: Viewer) -> None:
    page = viewer.page
    viewer.open("queues", "Queues")
    viewer.show_all()
    page.get_by_label("Name *").fill(HOSTILE)
    page.get_by_role("button", name="Message TTL").click()
    page.get_by_label("Arguments: value 1").fill("60000")
    page.get_by_role("button", name="Add queue").click()
    page.locator("tbody").get_by_role("link", name=HOSTILE).click()
    page.locator("h1", has_text=HOSTILE).wait_for()
    page.get_by_label("From exchange").wait_for()
    viewer.show_all()
    page.get_by_label("From exchange").fill("amq.topic")
    page.locator("form", has_text="From exchange").get_by_label("Routing key").fill("a.<b>")
    page.get_by_role("button", name="Bind", exact=True).click()
    page.locator("tbody tr", has_text="amq.topic").locator("td", has_text="a.<b>").wait_for()
    page.get_by_label("Payload", exact=True).fill("<script>alert(2)</script>")
    page.get_by_role("button", name="Publish message").click()
    page.get_by_text("The message is published.").wait_for()
    page.get_by_role("button", name="Get messages").click()
    page.locator("pre", has_text="<script>alert(2)</script>").wait_for()
    page.locator("tbody tr", has_text="amq.topic").get_by_role("button", name="Unbind").click()
    page.get_by_role("dialog").get_by_role("button", name="Unbind").click()
    page.locator("tbody tr", has_text="amq.topic").wait_for(state="detached")
    page.get_by_role("button", name="Purge messages").click()
    page.get_by_role("dialog").get_by_role("button", name="Purge messages").click()
    page.get_by_text("is purged").wait_for()
    page.get_by_role("button", name="Delete queue").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete queue").click()
    page.locator("h1", has_text="Queues and Streams").wait_for()
    assert api.get("queues") == []


def test_the_page_stays_up_to_date_unless_it_is_hidden(api: HttpApi, viewer: Viewer) -> None:
    viewer.page.clock.install()
    viewer.open("queues", "Queues")
    declare(api, "late")
    viewer.page.clock.fast_forward(6000)
    viewer.page.get_by_role("link", name="late").wait_for()
    hide = """hidden => {
        Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    viewer.page.evaluate(hide, True)
    viewer.requests.clear()
    viewer.page.clock.fast_forward(60_000)
    assert viewer.requests == []
    with viewer.page.expect_request("**/api/queues?*"):
        viewer.page.evaluate(hide, False)


def test_a_request_that_takes_long_is_repeated_less_often(viewer: Viewer) -> None:
    page = viewer.page
    held: list[Route] = []
    page.locator("h1", has_text="Overview").wait_for()
    page.clock.install()

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/api/warren/delays*", hold)
    with page.expect_request("**/api/warren/delays*"):
        page.evaluate("location.hash = '#/delays'")
    page.clock.fast_forward(300_000)
    with page.expect_response("**/api/warren/delays*"):
        held.pop().continue_()
    page.unroute("**/api/warren/delays*")
    page.get_by_text("Nothing waits for a time.").wait_for()
    viewer.requests.clear()
    with page.expect_request("**/api/vhosts*"):
        page.clock.fast_forward(60_000)
    assert not any("/api/warren/delays" in each for each in viewer.requests)
    with page.expect_request("**/api/warren/delays*"):
        page.clock.fast_forward(1_200_000)


def test_the_search_box_and_the_keys(api: HttpApi, viewer: Viewer) -> None:
    declare(api, "orders")
    page = viewer.page
    page.locator("h1", has_text="Overview").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.locator("h1", has_text="Queues").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("order")
    page.get_by_role("option", name="orders").wait_for()
    page.keyboard.press("Enter")
    page.locator("h1", has_text="Queue orders").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("Search everywhere").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
