"""The tabs Messages and Topology of the management page: dead letters, browsing, stories, delays, and what leads where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import pytest

from tests.page.tools import needs_browser
from tests.page.viewer import Viewer
from tests.support.blocking_client import Connection
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from warren.broker import BrokerConfig

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = [needs_browser, pytest.mark.processes, pytest.mark.slow]

HOSTILE = "<img src=x onerror=\"document.title='broken'\">&'#?/%2f"
"""Name of a queue and id of a message that break a page which takes text for HTML, or does not quote it in paths."""
VIEWS = {
    "dead-letters": "Dead letters",
    "dead-letters/%2F/billing.dead": "Dead letters in billing.dead",
    "messages": "Browse messages",
    "messages/%2F/billing.dead": "Messages in billing.dead",
    "stories": "Story of a message",
    "stories/%2F/order-0": "Story of order-0",
    "delays": "Delays",
    "delays/%2F/later": "Delayed in later",
    "topology/%2F": "Topology of /",
}
"""Addresses of the tabs, with their headings."""


@pytest.fixture
def served() -> Iterator[InProcessBroker]:
    """Run a broker with dead letters, delayed messages, captured events, and hostile names."""
    config = BrokerConfig(
        management_port=0, handshake_timeout=PATIENCE, login_failure_delay=0, capture_events=("events",)
    )
    with InProcessBroker(config=config) as broker:
        with Connection(broker.url) as connection:
            channel = connection.channel()
            channel.declare_exchange("orders", "topic", durable=True, alternate_exchange="gone")
            channel.declare_exchange("later", "x-delayed-message", durable=True, x_delayed_type="fanout")
            channel.declare("billing.dead", durable=True)
            channel.declare(
                "billing", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="billing.dead"
            )
            channel.bind("billing", "orders", "order.#")
            channel.bind("billing", "later")
            for number in range(3):
                channel.publish(
                    "order.placed", f'{{"n": {number}}}', exchange="orders", message_id=f"order-{number}"
                )
            channel.consume("billing", "c")
            for message in channel.deliveries(3):
                channel.reject(message.tag)
            channel.cancel("c")
            channel.publish("", "late", exchange="later", headers={"x-delay": 3_600_000})
            assert channel.ready("billing.dead") == 3
        # The broker writes captured events once a second of its clock.
        broker.advance(60)
        yield broker


def part(name: str) -> str:
    return quote(name, safe="")


def told(viewer: Viewer, text: str) -> None:
    """Wait for a notice, and take it away."""
    notice = viewer.page.locator(".notices p", has_text=text)
    notice.first.wait_for()
    notice.first.get_by_role("button", name="Dismiss").click()


def card(viewer: Viewer, message_id: str) -> Locator:
    """Return the card of a message."""
    return viewer.page.locator(".card").filter(has=viewer.page.locator("summary b", has_text=message_id))


def drained(served: InProcessBroker, queue: str) -> list[bytes]:
    with Connection(served.url) as connection:
        return connection.channel().drain(queue)


def test_dead_letters_are_shown_by_cause_edited_and_replayed(served: InProcessBroker, viewer: Viewer) -> None:
    page = viewer.page
    viewer.open("dead-letters", "Dead letters")
    page.get_by_role("link", name="billing.dead").click()
    page.locator("h1", has_text="Dead letters in billing.dead").wait_for()
    cause = page.get_by_role("region", name="Causes").locator("tbody tr")
    cause.wait_for()
    assert cause.locator("th, td").all_inner_texts()[:3] == ["billing", "3", "rejected"]
    cause.get_by_role("link", name="Show").click()
    page.locator("h1", has_text="Messages in billing.dead").wait_for()
    card(viewer, "order-0").locator("summary").click()
    card(viewer, "order-0").get_by_role("button", name="Edit and replay …").click()
    card(viewer, "order-0").get_by_label("Payload (text)").fill('{"n": "edited"}')
    card(viewer, "order-0").get_by_label("Headers: name 1").fill("checked")
    card(viewer, "order-0").get_by_label("Headers: value 1").fill("<b>")
    page.get_by_role("button", name="Replay edited message").click()
    told(viewer, "1 message replayed")
    card(viewer, "order-0").wait_for(state="detached")
    viewer.open("dead-letters/%2F/billing.dead", "Dead letters in billing.dead")
    page.get_by_role("button", name="Replay all").click()
    told(viewer, "2 messages replayed")
    page.get_by_text("There are no dead letters in this queue.").wait_for()
    assert drained(served, "billing") == [b'{"n": "edited"}', b'{"n": 1}', b'{"n": 2}']


def test_all_letters_of_a_cause_are_deleted_after_a_question(served: InProcessBroker, viewer: Viewer) -> None:
    viewer.open("dead-letters/%2F/billing.dead", "Dead letters in billing.dead")
    viewer.page.get_by_role("button", name="Delete all").click()
    viewer.page.get_by_role("dialog").get_by_text("3 messages of this cause will be lost.").wait_for()
    viewer.page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
    told(viewer, "3 messages deleted")
    assert drained(served, "billing.dead") == []


def test_messages_are_filtered_moved_and_deleted(served: InProcessBroker, viewer: Viewer) -> None:
    page = viewer.page
    viewer.open("queues/%2F/billing.dead", "Queue billing.dead")
    page.get_by_role("link", name="Browse messages").click()
    page.locator("h1", has_text="Messages in billing.dead").wait_for()
    card(viewer, "order-2").wait_for()
    viewer.show_all()
    page.get_by_label("Message id", exact=True).fill("order-1")
    page.get_by_role("button", name="Filter", exact=True).click()
    card(viewer, "order-0").wait_for(state="detached")
    assert page.locator(".card").count() == 1
    page.reload()
    card(viewer, "order-1").get_by_role("button", name="Move …").click()
    page.get_by_label("Queue *").fill("nowhere")
    page.get_by_role("button", name="Move message").click()
    told(viewer, "there is no queue of the name")
    viewer.forgive("404")
    page.get_by_label("Queue *").fill("billing")
    page.get_by_role("button", name="Move message").click()
    told(viewer, "1 message moved")
    page.get_by_text("There are no such messages.").wait_for()
    page.get_by_role("button", name="Show all").click()
    card(viewer, "order-0").locator("summary").click()
    page.get_by_role("button", name="Delete message").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete message").click()
    told(viewer, "The message is deleted")
    page.get_by_role("button", name="Choose all on this page").click()
    page.get_by_text("1 chosen").wait_for()
    page.get_by_role("button", name="Replay chosen").click()
    told(viewer, "1 message replayed")
    assert drained(served, "billing") == [b'{"n": 1}', b'{"n": 2}']
    assert drained(served, "billing.dead") == []


def test_what_is_typed_stays_while_the_page_updates(viewer: Viewer) -> None:
    page = viewer.page
    page.clock.install()
    viewer.open("messages/%2F/billing.dead", "Messages in billing.dead")
    viewer.show_all()
    page.get_by_label("Message id", exact=True).fill("half")
    card(viewer, "order-1").locator("summary").click()
    card(viewer, "order-1").get_by_role("button", name="Edit and replay …").click()
    card(viewer, "order-1").get_by_label("Payload (text)").fill("mine")
    with page.expect_response("**/messages?limit=50"):
        page.clock.fast_forward(60_000)
    assert page.get_by_label("Message id", exact=True).input_value() == "half"
    assert card(viewer, "order-1").get_by_label("Payload (text)").input_value() == "mine"


def test_unacknowledged_messages_and_those_of_streams_are_read_only(
    served: InProcessBroker, viewer: Viewer
) -> None:
    page = viewer.page
    with Connection(served.url) as connection:
        channel = connection.channel()
        channel.consume("billing.dead", "reader")
        channel.deliveries(3)
        viewer.open("messages/%2F/billing.dead?state=unacknowledged", "Messages in billing.dead")
        card(viewer, "order-0").locator("summary").click()
        card(viewer, "order-0").locator("dd", has_text="reader of guest").wait_for()
        assert card(viewer, "order-0").get_by_role("button").count() == 0
    viewer.open("messages/%2F/events", "Messages in events")
    page.locator(".card").first.locator("summary").click()
    page.locator(".card dd", has_text="warren.events").first.wait_for()
    viewer.show_all()
    page.get_by_label("From offset").fill("100000")
    page.get_by_role("button", name="Filter", exact=True).click()
    page.get_by_text("There are no such messages.").wait_for()


def test_the_story_of_a_message_is_drawn_and_listed(viewer: Viewer) -> None:
    page = viewer.page
    viewer.open("stories", "Story of a message")
    page.get_by_label("Message id").fill("order-0")
    page.get_by_role("button", name="Show the story").click()
    page.locator("h1", has_text="Story of order-0").wait_for()
    page.get_by_role("region", name="the sequence").locator("svg").wait_for()
    assert page.locator("svg .participant").count() >= 4
    page.get_by_role("region", name="Steps").locator("td", has_text="dead-lettered: rejected").wait_for()
    larger = page.get_by_role("button", name="Larger")
    before = page.locator(".drawing svg").bounding_box()
    larger.click()
    page.get_by_text("125 %").wait_for()
    after = page.locator(".drawing svg").bounding_box()
    assert before is not None
    assert after is not None
    assert after["width"] > before["width"]
    viewer.open("messages/%2F/billing.dead?message_id=order-0", "Messages in billing.dead")
    page.get_by_role("link", name="order-0 (its story)").click()
    page.locator("h1", has_text="Story of order-0").wait_for()
    viewer.open("stories/%2F/unknown", "Story of unknown")
    page.get_by_text("No event of this message is there").wait_for()


def test_the_topology_is_drawn_with_its_risks(viewer: Viewer) -> None:
    page = viewer.page
    viewer.open("topology", "Topology of /")
    viewer.show_all()
    page.get_by_role("cell", name="has the alternate exchange 'gone', which does not exist").wait_for()
    assert page.locator("svg a.node.risky").filter(has_text="orders").count() == 1
    lefts = [
        page.locator(f'svg a.node[aria-label^="{name}"] rect').get_attribute("x")
        for name in ("exchange orders", "queue billing.dead")
    ]
    assert float(lefts[0] or "inf") < float(lefts[1] or 0), "messages go from left to right"
    assert page.get_by_role("region", name="Ways").locator("tbody tr", has_text="order.#").count() == 1
    page.get_by_label("Name contains").fill("orders")
    page.get_by_role("button", name="Show", exact=True).click()
    page.locator("svg a.node").filter(has_text="later").wait_for(state="detached")
    assert page.locator("svg a.node").count() == 2
    page.get_by_role("link", name="queue billing", exact=True).click()
    page.locator("h1", has_text="Queue billing").wait_for()
    page.get_by_role("link", name="Topology around it").click()
    page.locator("svg a.node").first.wait_for()
    assert page.get_by_label("Name contains").input_value() == "billing"


def test_a_topology_with_cycles_and_chains_is_drawn(
    api: HttpApi, served: InProcessBroker, viewer: Viewer
) -> None:
    with Connection(served.url) as connection:
        channel = connection.channel()
        channel.declare_exchange("retry", "direct", durable=True)
        channel.declare("work", durable=True, x_dead_letter_exchange="retry")
        channel.declare("wait", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="work")
        channel.bind("wait", "retry", "work")
        for number in range(20):
            channel.declare_exchange(f"chain-{number:02}", "fanout", durable=True)
    for number in range(19):
        bound = api.ask("POST", f"bindings/%2F/e/chain-{number:02}/e/chain-{number + 1:02}", {})
        assert bound.status == 201
    viewer.open("topology/%2F", "Topology of /")
    viewer.page.locator("svg a.node").filter(has_text="chain-19").wait_for()
    assert viewer.page.locator("svg .edge.dead-letter").filter(has_text="work").count() >= 2


def test_delays_that_wait_are_listed_with_their_messages(viewer: Viewer) -> None:
    viewer.open("delays", "Delays")
    viewer.page.get_by_text("Timers and sagas live in stores of their own").wait_for()
    viewer.page.get_by_role("link", name="later").click()
    viewer.page.locator("h1", has_text="Delayed in later").wait_for()
    viewer.page.locator("td pre", has_text="late").wait_for()


def test_the_address_of_the_former_page_leads_to_dead_letters(viewer: Viewer) -> None:
    for former in ("/warren/", "/warren"):
        viewer.page.goto(viewer.url + former)
        viewer.page.locator("h1", has_text="Dead letters").wait_for()
        assert viewer.page.url == f"{viewer.url}/#/dead-letters"


def test_users_see_what_their_permissions_let_them_read(browser: Browser, api: HttpApi) -> None:
    api.put("users/clerk", {"password": "secret", "tags": "management"})
    api.put("permissions/%2F/clerk", {"configure": "", "write": "", "read": "^billing$"})
    with Viewer.at(browser, api.base) as viewer:
        page = viewer.page
        viewer.log_in("clerk", "secret")
        page.get_by_role("link", name="Messages", exact=True).click()
        viewer.open("messages/%2F/billing", "Messages in billing")
        page.get_by_text("There are no such messages.").wait_for()
        assert viewer.noise == []
        for address, heading in (
            ("messages/%2F/billing.dead", "Messages in billing.dead"),
            ("dead-letters/%2F/billing.dead", "Dead letters in billing.dead"),
            ("stories/%2F/order-0", "Story of order-0"),
            ("delays/%2F/later", "Delayed in later"),
        ):
            viewer.open(address, heading)
            page.get_by_role("alert").get_by_text("You may not do this").wait_for()
        viewer.forgive("401")
        assert viewer.noise == []


def test_hostile_names_and_payloads_are_texts(api: HttpApi, viewer: Viewer) -> None:
    page = viewer.page
    name = part(HOSTILE)
    api.put(f"queues/%2f/{name}", {"durable": True})
    error = {"warren-dead-reason": "failed", "warren-dead-queue": HOSTILE, "warren-dead-error": HOSTILE}
    properties = {"message_id": HOSTILE, "type": HOSTILE, "headers": {**error, HOSTILE: HOSTILE}}
    body = {"routing_key": HOSTILE, "payload": HOSTILE, "payload_encoding": "string"}
    sent = api.ask("POST", "exchanges/%2f/amq.default/publish", {**body, "properties": properties})
    assert sent.body == {"routed": True}
    for address, heading in (
        (f"dead-letters/%2F/{name}", "Dead letters in <img"),
        (f"messages/%2F/{name}", "Messages in <img"),
        (f"stories/%2F/{name}", "Story of <img"),
        (f"topology/%2F?name={name}", "Topology of /"),
        (f"queues/%2F/{name}", "Queue <img"),
    ):
        viewer.open(address, heading)
        page.locator("main th, main h1, main summary, main svg").get_by_text("onerror").first.wait_for(
            state="attached"
        )
        assert page.locator("main img").count() == 0
        assert page.title() != "broken"
        assert viewer.violations() == [], address
    viewer.open(f"messages/%2F/{name}", "Messages in <img")
    page.locator(".card pre", has_text=HOSTILE).wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_views_are_accessible_and_fit_a_phone(
    browser: Browser, api: HttpApi, scheme: Literal["light", "dark"]
) -> None:
    with Viewer.at(browser, api.base, scheme) as viewer:
        viewer.log_in()
        viewer.page.locator("h1", has_text="Overview").wait_for()
        for address, heading in VIEWS.items():
            viewer.check_accessibility(address, heading, scheme)
        viewer.open("messages/%2F/billing.dead", "Messages in billing.dead")
        card(viewer, "order-0").locator("summary").click()
        for form in ("Move …", "Edit and replay …"):
            card(viewer, "order-0").get_by_role("button", name=form).click()
            assert viewer.violations() == []
        viewer.picture(f"edit-{scheme}")
        assert viewer.noise == []
