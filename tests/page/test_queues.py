"""Queues and streams on the management page: adding them, and what can be done with their messages."""

from __future__ import annotations

import pytest

from tests.page.tools import needs_browser
from tests.page.traffic import shop
from tests.page.viewer import Viewer
from tests.support.blocking_client import Connection
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import InProcessBroker

pytestmark = [needs_browser, pytest.mark.processes, pytest.mark.slow]


def publish(api: HttpApi, queue: str, count: int) -> None:
    for number in range(count):
        message = {
            "routing_key": queue,
            "payload": f"message {number}",
            "payload_encoding": "string",
            "properties": {},
        }
        assert api.ask("POST", "exchanges/%2F/amq.default/publish", message).body == {"routed": True}


@pytest.mark.parametrize(
    ("kind", "argument", "value", "letters"),
    [
        ("classic", "Maximum priority", "5", ["D", "Pri"]),
        ("quorum", "Delivery limit", "3", ["D", "DlL"]),
        ("stream", "Max age", "7D", ["D", "Args"]),
    ],
)
def test_a_queue_of_each_type_is_added(
    api: HttpApi, viewer: Viewer, kind: str, argument: str, value: str, letters: list[str]
) -> None:
    page = viewer.page
    viewer.open("queues", "Queues and Streams")
    viewer.show_all()
    page.locator("main form").get_by_label("Type", exact=True).select_option(kind)
    page.get_by_label("Name *").fill("added")
    page.get_by_role("button", name=argument).click()
    page.get_by_label("Arguments: value 1").fill(value)
    assert page.get_by_label("Durable").count() == (1 if kind == "classic" else 0)
    page.get_by_role("button", name="Add queue").click()
    row = page.locator("tbody tr", has_text="added")
    row.wait_for()
    assert row.locator("abbr").all_inner_texts() == letters
    assert api.get("queues/%2F/added")["type"] == kind


def test_messages_are_read_taken_and_moved(api: HttpApi, viewer: Viewer) -> None:
    page = viewer.page
    for name in ("from", "to"):
        api.put(f"queues/%2F/{name}", {"durable": True})
    publish(api, "from", 3)
    viewer.open("queues/%2F/from", "Queue from")
    viewer.show_all()
    page.get_by_role("button", name="Get messages").click()
    page.locator("pre", has_text="message 0").wait_for()
    found = page.locator("article", has_text="message 0")
    assert (
        found.locator("div", has=page.locator("dt", has_text="Redelivered")).locator("dd").inner_text()
        == "no"
    )
    page.get_by_label("Ack mode").select_option("ack_requeue_true")
    page.get_by_label("Messages", exact=True).fill("2")
    page.get_by_role("button", name="Get messages").click()
    page.locator("pre", has_text="message 1").wait_for()
    page.get_by_label("Ack mode").select_option("ack_requeue_false")
    page.get_by_label("Messages", exact=True).fill("1")
    page.get_by_role("button", name="Get messages").click()
    page.locator("pre", has_text="message 1").wait_for(state="detached")
    page.locator(".counts tr", has_text="Messages").locator("td", has_text="2").first.wait_for()
    page.get_by_label("To queue *").fill("nowhere")
    page.get_by_role("button", name="Move messages").click()
    page.get_by_role("dialog").get_by_role("button", name="Move messages").click()
    page.get_by_role("alert").get_by_text("there is no queue of the name").wait_for()
    page.get_by_label("To queue *").fill("to")
    page.get_by_role("button", name="Move messages").click()
    page.get_by_role("dialog").get_by_text("All 2 ready messages of from go to to.").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Move messages").click()
    page.get_by_text("2 messages are in to now.").wait_for()
    assert (api.get("queues/%2F/from")["messages"], api.get("queues/%2F/to")["messages"]) == (0, 2)
    assert page.get_by_role("button", name="Purge messages").is_disabled()
    viewer.forgive("404")


def test_a_queue_in_use_is_deleted_only_without_the_condition(
    api: HttpApi, served: InProcessBroker, viewer: Viewer
) -> None:
    page = viewer.page
    with Connection(served.url) as connection:
        channel = connection.channel()
        channel.declare("used", durable=True)
        channel.consume("used", "worker")
        viewer.open("queues/%2F/used", "Queue used")
        viewer.show_all()
        page.get_by_label("Only if unused").check()
        page.get_by_role("button", name="Delete queue").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete queue").click()
        page.get_by_role("alert").get_by_text("in use").wait_for()
        page.get_by_label("Only if unused").uncheck()
        page.get_by_role("button", name="Delete queue").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete queue").click()
        page.get_by_text("There are no queues").wait_for()
    assert api.get("queues") == []
    viewer.forgive("400")


def test_a_stream_is_read_from_an_offset(served: InProcessBroker, viewer: Viewer) -> None:
    page = viewer.page
    with shop(served):
        viewer.open("queues/%2F/orders.history", "Queue orders.history")
        viewer.show_all()
        page.locator("dt", has_text="Segments").wait_for()
        page.get_by_role("img", name="Messages: Total 306").wait_for()
        assert page.get_by_role("button", name="Purge messages").count() == 0
        reading = page.locator("form", has=page.get_by_role("button", name="Read messages"))
        reading.get_by_label("From", exact=True).select_option("offset")
        reading.get_by_label("Offset", exact=True).fill("3")
        reading.get_by_label("Messages", exact=True).fill("2")
        reading.get_by_role("button", name="Read messages").click()
        page.locator("pre", has_text='{"order": 3}').wait_for()
        page.locator("pre", has_text='{"order": 4}').wait_for()
        assert page.locator("article dd", has_text="3").first.inner_text() == "3"


def test_an_exclusive_queue_names_its_connection(served: InProcessBroker, viewer: Viewer) -> None:
    page = viewer.page
    with Connection(served.url) as connection:
        connection.channel().declare("mine", exclusive=True)
        viewer.open("queues", "Queues and Streams")
        page.locator("tbody tr", has_text="mine").get_by_role("link", name="Excl").click()
        page.locator("h1", has_text="Connection 127.0.0.1:").wait_for()


def test_charts_of_a_queue_cover_a_minute_to_a_day(served: InProcessBroker, viewer: Viewer) -> None:
    page = viewer.page
    with shop(served):
        viewer.open("queues/%2F/orders.new", "Queue orders.new")
        page.get_by_role("img", name="Queued messages: Ready 10, Unacked 20, Total 30").wait_for()
        page.get_by_role("img", name="Message rates: Publish").wait_for()
        for seconds in ("60", "600", "3600", "28800", "86400"):
            with page.expect_response(
                lambda found, wanted=seconds: f"msg_rates_age={wanted}" in found.url
            ) as answer:
                page.get_by_label("Charts cover").select_option(seconds)
                if seconds == "600":
                    page.reload()
            assert answer.value.status == 200
        legend = page.locator("figure", has_text="Message rates").get_by_role("button", name="Consumer ack")
        legend.click()
        assert legend.get_attribute("aria-pressed") == "false"


def test_virtual_hosts_are_a_column_and_a_choice_if_there_are_several(api: HttpApi, viewer: Viewer) -> None:
    page = viewer.page
    api.put("queues/%2F/orders", {"durable": True})
    viewer.open("queues", "Queues and Streams")
    page.get_by_role("link", name="orders").wait_for()
    assert page.get_by_role("columnheader", name="Virtual host").count() == 0
    api.put("vhosts/shop")
    api.put("queues/shop/baskets", {"durable": True})
    page.reload()
    page.get_by_role("columnheader", name="Virtual host").wait_for()
    page.get_by_label("Virtual host").first.select_option("shop")
    page.locator("tbody tr", has_text="orders").wait_for(state="detached")
    page.get_by_role("link", name="baskets").wait_for()
