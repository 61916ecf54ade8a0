"""Exchanges on the management page: list, view, bindings, publishing, deletion."""

from __future__ import annotations

import pytest

from tests.page.tools import needs_browser
from tests.page.traffic import HOSTILE, shop
from tests.page.viewer import Viewer
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import InProcessBroker

pytestmark = [needs_browser, pytest.mark.processes, pytest.mark.slow]


def test_an_exchange_is_added_bound_used_and_deleted(api: HttpApi, viewer: Viewer) -> None:
    page = viewer.page
    api.put("queues/%2F/orders", {"durable": True})
    viewer.open("exchanges", "Exchanges")
    viewer.show_all()
    page.get_by_label("Name *").fill(HOSTILE)
    page.locator("main form").get_by_label("Type", exact=True).select_option("x-delayed-message")
    page.get_by_label("Auto delete").check()
    page.get_by_role("button", name="Delayed type").click()
    page.get_by_text("when its delay (header x-delay, ms) is over").wait_for()
    page.get_by_role("button", name="Add exchange").click()
    row = page.locator("tbody tr", has_text=HOSTILE)
    row.wait_for()
    assert row.locator("abbr").all_inner_texts() == ["D", "AD", "Args"]
    row.get_by_role("link").click()
    page.locator("h1", has_text=HOSTILE).wait_for()
    viewer.show_all()
    binding = page.locator("form", has=page.get_by_label("To", exact=True))
    binding.get_by_label("Name *").fill("ord")
    page.locator("datalist option[value=orders]").wait_for(state="attached")
    binding.get_by_label("Name *").fill("orders")
    binding.get_by_label("Routing key").fill("<b>")
    binding.get_by_role("button", name="Bind", exact=True).click()
    bound = page.locator("tbody tr", has_text="orders")
    bound.locator("td", has_text="<b>").wait_for()
    publishing = page.locator("form", has_text="Payload is")
    publishing.get_by_label("Routing key").fill("<b>")
    publishing.get_by_label("Payload", exact=True).fill("hello")
    page.get_by_role("button", name="Publish message").click()
    page.get_by_text("The message is published.").wait_for()
    publishing.get_by_label("Routing key").fill("nobody")
    page.get_by_role("button", name="Publish message").click()
    page.get_by_role("alert").get_by_text("no queue got it").wait_for()
    assert api.get("queues/%2F/orders")["messages"] == 1
    binding.get_by_label("To", exact=True).select_option("e")
    binding.get_by_label("Name *").fill("amq.fanout")
    binding.get_by_role("button", name="Bind", exact=True).click()
    page.locator("tbody tr", has_text="amq.fanout").get_by_role("button", name="Unbind").click()
    page.get_by_role("dialog").get_by_role("button", name="Unbind").click()
    page.locator("tbody tr", has_text="amq.fanout").wait_for(state="detached")
    page.get_by_role("button", name="Delete exchange").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete exchange").click()
    page.locator("h1", has_text="Exchanges").wait_for()
    page.locator("tbody tr", has_text=HOSTILE).wait_for(state="detached")


def test_the_default_exchange_publishes_and_cannot_be_changed(api: HttpApi, viewer: Viewer) -> None:
    page = viewer.page
    api.put("queues/%2F/orders", {"durable": True})
    viewer.open("exchanges", "Exchanges")
    page.get_by_role("link", name="(AMQP default)").click()
    page.locator("h1", has_text="Exchange (AMQP default)").wait_for()
    viewer.show_all()
    page.get_by_text("Each queue is bound to the default exchange").wait_for()
    page.get_by_text("it cannot be deleted").wait_for()
    page.get_by_label("Routing key").fill("orders")
    page.get_by_role("button", name="Publish message").click()
    page.get_by_text("The message is published.").wait_for()
    assert api.get("queues/%2F/orders")["messages"] == 1


def test_rates_of_exchanges_are_listed_and_drawn(served: InProcessBroker, viewer: Viewer) -> None:
    page = viewer.page
    with shop(served):
        viewer.open("exchanges", "Exchanges")
        page.get_by_role("button", name="Rate in").click()
        page.get_by_role("button", name="Rate in").click()
        first = page.locator("tbody tr").first
        first.get_by_role("link", name="orders").wait_for()
        assert first.locator("td").last.inner_text().endswith("/s")
        first.get_by_role("link").click()
        page.get_by_role("img", name="Message rates: Publish (in)").wait_for()
        assert page.get_by_label("Charts cover").locator("option").all_inner_texts() == [
            "Last minute",
            "Last ten minutes",
        ]
        page.locator("tbody tr", has_text="orders.history").get_by_role("link").click()
        page.locator("h1", has_text="Queue orders.history").wait_for()


def test_what_a_user_may_not_do_is_answered_in_words(api: HttpApi, viewer: Viewer) -> None:
    page = viewer.page
    api.put("users/clerk", {"password": "secret", "tags": "management"})
    api.put("permissions/%2F/clerk", {"configure": "^mine", "write": "^mine", "read": ".*"})
    api.put("exchanges/%2F/orders", {"type": "topic"})
    page.get_by_role("button", name="Log out").click()
    viewer.log_in("clerk", "secret")
    page.locator("h1", has_text="Overview").wait_for()
    assert page.locator("h2", has_text="Node").count() == 0
    viewer.open("exchanges/%2F/orders", "Exchange orders")
    viewer.show_all()
    for button in ("Publish message", "Delete exchange"):
        page.get_by_role("button", name=button).click()
        if button == "Delete exchange":
            page.get_by_role("dialog").get_by_role("button", name=button).click()
        page.get_by_role("alert").get_by_text("You may not do this").wait_for()
        page.get_by_role("button", name="Dismiss").click()
    assert api.get("exchanges/%2F/orders")["name"] == "orders"
    viewer.forgive("401", "403")
