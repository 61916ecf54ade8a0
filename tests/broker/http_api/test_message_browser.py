"""Messages of queues over HTTP, browsed without consuming them, and deleted, moved or replayed one by one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.broker.http_api.conftest import base_url
from tests.support.blocking_client import Channel, Connection
from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.processes import free_port
from warren.broker import BrokerConfig
from warren.broker.http_api.messages import dead_letter, letter_edit
from warren.patterns.dead_letters.edit import EDITABLE_PROPERTIES, EDITED
from warren.patterns.dead_letters.replay import REPLAYED
from warren.sdk import extend
from warren.sdk.messages.forwarding import BROKER_HEADERS, ROUTING_HEADERS

PAGE = "warren/queues/%2f/{}/messages"


def bodies(api: HttpApi, queue: str, **query: object) -> list[str]:
    """Return the payloads of all pages of a queue."""
    found: list[str] = []
    after = ""
    while True:
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        page = api.get(f"{PAGE.format(queue)}?{asked}{after}")
        found += [each["payload"] for each in page["messages"]]
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def ids(api: HttpApi, queue: str, *payloads: str) -> list[str]:
    page = api.get(f"{PAGE.format(queue)}?limit=500")
    return [each["id"] for each in page["messages"] if each["payload"] in payloads]


def act(api: HttpApi, where: str, action: str, **body: object) -> Any:
    found = api.ask("POST", f"{PAGE.format(where)}/{action}", body)
    assert found.status == 200, found
    return found.body


def fill(channel: Channel, queue: str, *payloads: str, **properties: Any) -> None:
    channel.confirm()
    for payload in payloads:
        channel.publish(queue, payload, **properties)
    channel.settled_until(len(payloads))


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_ready_messages_are_shown_page_by_page_and_stay(api: HttpApi, channel: Channel, kind: str) -> None:
    api.put("queues/%2f/q", {"durable": True, "arguments": {"x-queue-type": kind}})
    wanted = [str(number) for number in range(150)]
    fill(channel, "q", *wanted, delivery_mode=2, headers={"n": 1}, message_id="m")

    first = api.get(f"{PAGE.format('q')}?limit=1")["messages"][0]

    assert bodies(api, "q", limit=7) == wanted
    assert channel.drain("q") == [each.encode() for each in wanted]
    assert (first["state"], first["redelivered"], first["delivery_count"]) == ("ready", False, 0)
    assert first["properties"] == {"delivery_mode": 2, "headers": {"n": 1}, "message_id": "m"}
    assert first["dead_letter"] is None


def test_messages_of_a_priority_queue_are_shown_in_the_order_of_delivery(
    api: HttpApi, channel: Channel
) -> None:
    api.put("queues/%2f/q", {"arguments": {"x-max-priority": 5}})
    for number in range(40):
        channel.publish("q", str(number), priority=number % 7)
    assert channel.ready("q") == 40

    shown = bodies(api, "q", limit=3)
    act(api, "q", "delete", ids=ids(api, "q", "5", "6", "0"))

    left = [body.decode() for body in channel.drain("q")]
    assert left == [each for each in shown if each not in ("5", "6", "0")]


def test_requeued_messages_are_shown_and_removed(api: HttpApi, channel: Channel) -> None:
    channel.declare("q")
    for number in range(20):
        channel.publish("q", str(number))
    channel.consume("q")
    held = channel.deliveries(20)
    page = api.get(f"{PAGE.format('q')}?state=unacknowledged&limit=8")

    assert [each["payload"] for each in page["messages"]] == [str(number) for number in range(8)]
    holder = page["messages"][0]["consumer"]
    assert (holder["consumer_tag"], holder["user"]) == (held[0].consumer, "guest")
    assert holder["channel"] == f"{holder['connection']} (1)"
    rest = api.get(f"{PAGE.format('q')}?state=unacknowledged&after={page['next']}")
    assert [each["payload"] for each in rest["messages"]] == [str(number) for number in range(8, 20)]
    assert bodies(api, "q") == []

    channel.cancel(held[0].consumer)
    channel.nack(held[-1].tag, multiple=True)
    assert channel.ready("q") == 20
    assert bodies(api, "q", limit=6) == [str(number) for number in range(20)]
    act(api, "q", "delete", ids=ids(api, "q", "0", "7", "13", "19"))
    left = [str(number) for number in range(20) if number not in (0, 7, 13, 19)]
    assert [body.decode() for body in channel.drain("q")] == left


def test_messages_on_disk_only_are_shown_and_removed(tmp_path: Path) -> None:
    config = BrokerConfig(management_port=0, handshake_timeout=PATIENCE, login_failure_delay=0)
    with InProcessBroker(tmp_path, config=config) as broker:
        with Connection(broker.url) as connection:
            channel = connection.channel()
            channel.declare("q", durable=True)
            channel.declare("other", durable=True)
            wanted = [f"{number:04d}" for number in range(4000)]
            fill(channel, "q", *[each + "x" * 300 for each in wanted], delivery_mode=2)
        broker.restart()
        api = HttpApi(base_url(broker))
        ready = broker.virtual_host().queues[b"q"].ready
        assert ready.delta.count
        assert [each[:4] for each in bodies(api, "q", limit=500)] == wanted

        gone = [*wanted[:3], *wanted[2500:2700], wanted[-1]]
        chosen: list[str] = []
        after = ""
        while True:
            page = api.get(f"{PAGE.format('q')}?limit=500&truncate=4{after}")
            chosen += [each["id"] for each in page["messages"] if each["payload"] in gone]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert act(api, "q", "delete", ids=chosen[:3])["done"] == 3
        assert act(api, "q", "move", ids=chosen[3:], queue="other")["done"] == 201
        assert act(api, "q", "move", ids=chosen, queue="other")["gone"] == 204

        left = [each for each in wanted if each not in gone]
        assert [each[:4] for each in bodies(api, "q", limit=500)] == left
        broker.restart()
        with Connection(broker.url) as again:
            channel = again.channel()
            assert [body[:4].decode() for body in channel.drain("q")] == left
            assert [body[:4].decode() for body in channel.drain("other")] == gone[3:]


def test_filters_choose_by_header_property_id_and_key(api: HttpApi, channel: Channel) -> None:
    channel.declare("q")
    channel.publish("q", "a", headers={"tenant": "x", "n": 1}, message_type="order")
    channel.publish("q", "b", headers={"tenant": "y"}, message_id="id-b")
    channel.publish("q", "c")
    assert channel.ready("q") == 3

    assert bodies(api, "q", header="tenant") == ["a", "b"]
    assert bodies(api, "q", header="tenant=y") == ["b"]
    assert bodies(api, "q", header="n=1") == ["a"]
    assert bodies(api, "q", property="type=order") == ["a"]
    assert bodies(api, "q", message_id="id-b") == ["b"]
    assert bodies(api, "q", routing_key="q", header="tenant=x") == ["a"]
    assert bodies(api, "q", exchange="nowhere") == []
    counted = act(api, "q", "delete", filter={"header": "tenant"}, dry_run=True)
    assert (counted["matched"], counted["done"], channel.ready("q")) == (2, 0, 3)
    assert act(api, "q", "delete", filter={"header": "tenant"})["done"] == 2
    assert channel.drain("q") == [b"c"]


def test_moved_messages_keep_their_properties_and_go_to_the_bound_queues(
    api: HttpApi, channel: Channel
) -> None:
    for queue in ("q", "one", "two"):
        channel.declare(queue)
    channel.declare_exchange("e", "direct")
    channel.bind("one", "e", "k")
    channel.bind("two", "e", "k")
    for number in range(5):
        channel.publish("q", str(number), headers={"h": number, "CC": ["never"]}, message_id=f"m{number}")
    assert channel.ready("q") == 5

    found = act(api, "q", "move", all=True, exchange="e", routing_key="k", limit=3)
    rest = act(api, "q", "move", all=True, exchange="e", routing_key="k", after=found["next"])

    assert (found["done"], found["finished"], rest["done"], rest["finished"]) == (3, False, 2, True)
    for queue in ("one", "two"):
        message = channel.get(queue)
        assert message is not None
        assert (message.body, message.headers["h"], message.properties.message_id) == (b"0", 0, "m0")
    assert channel.ready("one") == 4
    assert channel.ready("q") == 0


def test_a_move_into_a_full_queue_or_to_nowhere_leaves_the_message(api: HttpApi, channel: Channel) -> None:
    channel.declare("q")
    channel.declare("full", x_max_length=1, x_overflow="reject-publish")
    channel.declare_exchange("e", "direct")
    for body in ("a", "b"):
        channel.publish("q", body)
    assert channel.ready("q") == 2

    moved = act(api, "q", "move", all=True, queue="full")
    lost = act(api, "q", "move", all=True, exchange="e", routing_key="k")

    assert (moved["done"], [each["reason"] for each in moved["failed"]]) == (1, ["queue 'full' is full"])
    assert [each["reason"] for each in lost["failed"]] == ["exchange 'e' routes key 'k' to no queue"]
    assert channel.drain("q") == [b"b"]


def test_dead_letters_are_grouped_edited_and_replayed(api: HttpApi, channel: Channel) -> None:
    channel.declare("dead")
    channel.declare_exchange("orders", "topic")
    channel.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    channel.bind("work", "orders", "order.#")
    for number in range(6):
        channel.publish("order.new", f'{{"n": {number}}}', exchange="orders", content_type="application/json")
    channel.publish(
        "dead",
        "written",
        headers={
            "warren-dead-reason": "failed",
            "warren-dead-queue": "sdk",
            "warren-dead-error": "ValueError: no price for 17",
            "warren-exchange": "",
            "warren-key": "work",
        },
    )
    channel.consume("work", "c")
    for message in channel.deliveries(6):
        channel.reject(message.tag)
    channel.cancel("c")
    assert channel.ready("dead") == 7

    found = api.get("warren/queues/%2f/dead/dead-letters")
    assert [
        (each["count"], each["queue"], each["reason"], each["exception"], each["error"])
        for each in found["groups"]
    ] == [
        (6, "work", "rejected", "", ""),
        (1, "sdk", "failed", "ValueError", "ValueError: no price for <number>"),
    ]
    assert (found["scanned"], found["complete"], found["other"]) == (7, True, 0)
    listed = api.get("warren/dead-letters/%2f")
    assert [(each["name"], each["messages"], each["from_queues"]) for each in listed] == [
        ("dead", 7, ["work"])
    ]

    group = found["groups"][0]["group"]
    one = api.get(f"{PAGE.format('dead')}?group={group}&limit=1")["messages"][0]
    edit = {"payload": '{"n": "seven"}', "headers": {"fixed": True}, "properties": {"type": "order"}}
    assert act(api, "dead", "replay", ids=[one["id"]], edit=edit)["done"] == 1
    assert act(api, "dead", "replay", filter={"group": group}, limit=1, rate=1000)["done"] == 1
    assert act(api, "dead", "replay", filter={"group": group}, limit=1, to_exchange=True)["done"] == 1

    edited, second, third = (channel.get("work", no_ack=True) for _ in range(3))
    assert edited is not None
    assert second is not None
    assert third is not None
    assert (edited.body, edited.headers["fixed"], edited.properties.message_type) == (
        b'{"n": "seven"}',
        True,
        "order",
    )
    assert edited.headers["warren-edited"] == edited.headers["warren-replayed"] == 1
    assert "x-death" not in second.headers
    assert (second.body, third.body) == (b'{"n": 1}', b'{"n": 2}')
    assert (second.carrier.exchange, second.carrier.routing_key) == ("", "work")
    assert (third.carrier.exchange, third.carrier.routing_key) == ("orders", "order.new")
    assert channel.ready("dead") == 4


def test_wrong_edits_are_refused_and_change_nothing(api: HttpApi, channel: Channel) -> None:
    channel.declare("dead")
    headers = {
        "warren-dead-reason": "failed",
        "warren-dead-queue": "w",
        "warren-exchange": "",
        "warren-key": "dead",
    }
    channel.publish("dead", "{}", headers=headers, content_type="application/json")
    assert channel.ready("dead") == 1
    identity = ids(api, "dead", "{}")
    path = f"{PAGE.format('dead')}/replay"

    for edit in (
        7,
        {"x": 1},
        {"headers": {"x-death": 1}},
        {"headers": {"warren-deaths": 1}},
        {"properties": {"message_id": "new"}},
        {"properties": {"priority": "high"}},
        {"payload": 7},
        {"payload": "=", "payload_encoding": "base64"},
    ):
        assert api.ask("POST", path, {"ids": identity, "edit": edit}).status == 400, edit
    assert api.ask("POST", path, {"all": True, "edit": {"payload": "{}"}}).status == 400
    refused = act(api, "dead", "replay", ids=identity, edit={"payload": "no json"})
    assert "not JSON" in refused["failed"][0]["reason"]
    large = act(api, "dead", "replay", ids=identity, edit={"properties": {"priority": 1000}})
    assert "out of range" in large["failed"][0]["reason"]
    assert channel.drain("dead") == [b"{}"]


def test_delayed_messages_and_retries_are_shown_by_their_time(api: HttpApi, channel: Channel) -> None:
    channel.declare_exchange("later", "x-delayed-message", x_delayed_type="fanout")
    channel.declare(
        "q",
        durable=True,
        x_queue_type="quorum",
        x_delayed_retry_type="all",
        x_delayed_retry_min=3_600_000,
    )
    channel.bind("q", "later", "")
    channel.confirm()
    for hours in (3, 1, 2):
        channel.publish("", str(hours), exchange="later", headers={"x-delay": hours * 3_600_000})
    channel.publish("q", "again")
    channel.settled_until(4)
    fetched = channel.get("q")
    assert fetched is not None
    channel.nack(fetched.tag)

    page = api.get("warren/exchanges/%2f/later/delayed?limit=2")
    rest = api.get(f"warren/exchanges/%2f/later/delayed?after={page['next']}")
    assert [each["payload"] for each in page["messages"] + rest["messages"]] == ["1", "2", "3"]
    assert page["messages"][0]["due_at"] < page["messages"][1]["due_at"]
    assert channel.ready("q") == 0
    retry = api.get(f"{PAGE.format('q')}?state=retry")
    assert [each["payload"] for each in retry["messages"]] == ["again"]
    delays = {(each["kind"], each["name"]): each for each in api.get("warren/delays")}
    assert delays["exchange", "later"]["messages"] == 3
    assert delays["exchange", "later"]["next_due_at"] == page["messages"][0]["due_at"]
    assert delays["retry", "q"]["next_due_at"] == retry["messages"][0]["due_at"]


def test_streams_are_shown_by_offset(api: HttpApi, channel: Channel) -> None:
    channel.declare("s", durable=True, x_queue_type="stream")
    wanted = [str(number) for number in range(300)]
    fill(channel, "s", *wanted, message_id="m")

    assert bodies(api, "s", limit=90) == wanted
    assert bodies(api, "s", offset=290) == wanted[290:]
    assert bodies(api, "s", offset="last", limit=5) == wanted[295:]
    shown = api.get(f"{PAGE.format('s')}?offset=7&limit=1")["messages"][0]
    assert (shown["id"], shown["offset"], shown["state"]) == ("7", 7, "stored")
    assert api.ask("POST", f"{PAGE.format('s')}/delete", {"all": True}).status == 400
    assert api.ask("GET", f"{PAGE.format('s')}?offset=-1").status == 400


def test_requests_need_the_rights_that_amqp_needs(
    served: InProcessBroker, api: HttpApi, channel: Channel
) -> None:
    for user, read, write in (("reader", ".*", ""), ("writer", "", ".*"), ("mover", ".*", "^amq.default$")):
        api.put(f"users/{user}", {"password": "p", "tags": "management"})
        api.put(f"permissions/%2f/{user}", {"configure": "", "read": read, "write": write})
    api.put("users/stranger", {"password": "p", "tags": "management"})
    channel.declare("q")
    channel.declare("to")
    channel.declare_exchange("e", "fanout")
    channel.bind("to", "e", "")
    channel.declare("own", exclusive=True)
    channel.publish("q", "kept")
    assert channel.ready("q") == 1
    reader, writer, mover, stranger = (
        HttpApi(base_url(served), user, "p") for user in ("reader", "writer", "mover", "stranger")
    )
    path = PAGE.format("q")

    assert bodies(reader, "q") == ["kept"]
    assert writer.ask("GET", path).status == 401
    assert writer.ask("POST", f"{path}/delete", {"all": True}).status == 401
    assert writer.ask("GET", "warren/queues/%2f/q/dead-letters").status == 401
    assert stranger.ask("GET", path).status == 404
    assert stranger.get("warren/delays") == stranger.get("warren/dead-letters") == []
    assert reader.ask("POST", f"{path}/move", {"all": True, "queue": "to"}).status == 401
    assert mover.ask("POST", f"{path}/move", {"all": True, "exchange": "e", "routing_key": ""}).status == 401
    assert api.ask("GET", PAGE.format("own")).status == 400
    assert api.ask("POST", f"{PAGE.format('own')}/delete", {"all": True}).status == 400
    assert act(mover, "q", "move", all=True, queue="to")["done"] == 1
    assert channel.drain("to") == [b"kept"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=0", 400),
        ("limit=501", 400),
        ("limit=x", 400),
        ("limit=%EF%BC%91", 400),
        ("truncate=99999999", 400),
        ("state=consumed", 400),
        ("after=1", 400),
        ("after=00000000-1-0-1", 404),
        ("property=colour=red", 400),
        (f"header={'x' * 1025}", 400),
        ("header=%00%ff", 200),
    ],
)
def test_hostile_queries_are_refused(api: HttpApi, channel: Channel, query: str, status: int) -> None:
    channel.declare("q")
    assert api.ask("GET", f"{PAGE.format('q')}?{query}").status == status


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"all": False},
        {"all": True, "ids": []},
        {"ids": "x"},
        {"ids": [7]},
        {"ids": ["x"] * 1001},
        {"filter": []},
        {"filter": {}},
        {"filter": {"colour": "red"}},
        {"filter": {"header": 7}},
        {"all": True, "limit": 0},
        {"all": True, "limit": True},
        {"all": True, "rate": 0},
        {"all": True, "rate": "fast"},
        {"all": True, "rate": float("nan")},
        {"all": True, "dry_run": "perhaps"},
        {"all": True, "after": 7},
    ],
)
def test_hostile_bodies_are_refused(api: HttpApi, channel: Channel, body: dict[str, object]) -> None:
    channel.declare("q")
    channel.publish("q", "kept")
    assert channel.ready("q") == 1

    for action, more in (("delete", {}), ("move", {"queue": "q"}), ("replay", {})):
        assert api.ask("POST", f"{PAGE.format('q')}/{action}", {**body, **more}).status == 400
    assert channel.drain("q") == [b"kept"]


def test_what_a_publisher_wrote_is_shown_whatever_it_is(api: HttpApi, channel: Channel) -> None:
    channel.declare("q")
    hostile = {
        "x-death": [{"queue": 7, "time": "x"}],
        "warren-dead-error": 7,
        "warren-deaths": "x",
        "<b>": None,
    }
    channel.publish("q", b"\xff\x00", headers=hostile, message_id="<script>")
    channel.publish("q", "ä" * 5000, headers={"x-death": 7})
    assert channel.ready("q") == 2

    first, second = api.get(f"{PAGE.format('q')}?truncate=5")["messages"]

    assert (first["payload"], first["payload_encoding"]) == ("/wA=", "base64")
    assert (second["payload"], second["payload_truncated"], second["payload_bytes"]) == ("ää", True, 10000)
    assert second["dead_letter"] is None
    refused = act(api, "q", "replay", all=True)
    assert (refused["done"], len(refused["failed"])) == (0, 2)
    assert channel.ready("q") == 2


@pytest.mark.processes
@pytest.mark.parametrize(
    "moved", [pytest.param(1, marks=pytest.mark.slow), 400, pytest.param(900, marks=pytest.mark.slow)]
)
def test_a_kill_in_the_middle_of_a_move_neither_loses_nor_doubles_a_message(
    tmp_path: Path, moved: int
) -> None:
    port = free_port()
    wanted = [f"{number:04d}" for number in range(1500)]
    with BrokerProcess(tmp_path, *PATIENT, "--management-port", str(port)) as broker:
        api = HttpApi(f"http://127.0.0.1:{port}")
        with Connection(broker.url) as connection:
            channel = connection.channel()
            channel.declare("q", durable=True)
            channel.declare("to", durable=True)
            fill(channel, "q", *wanted, delivery_mode=2)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(act, api, "q", "move", all=True, queue="to")
            with Connection(broker.url) as connection:
                channel = connection.channel()
                while channel.ready("to") < moved:
                    pass
            broker.kill()
        broker.start()
        with Connection(broker.url) as connection:
            channel = connection.channel()
            left, arrived = channel.drain("q"), channel.drain("to")

    assert [body.decode() for body in arrived + left] == wanted


def test_the_headers_of_dead_letters_are_those_of_the_sdk() -> None:
    names = ("DEAD_REASON", "DEAD_ERROR", "DEAD_QUEUE", "DEAD_TIME", "DEAD_FIRST_TIME", "DEATHS", "ATTEMPT")
    for name in (*names, "ORIGIN_EXCHANGE", "ORIGIN_KEY"):
        assert getattr(dead_letter, name) == getattr(extend, name)
    assert (dead_letter.REPLAYED, dead_letter.EDITED) == (REPLAYED, EDITED)
    assert letter_edit.EDITABLE == EDITABLE_PROPERTIES
    assert letter_edit.DROPPED_HEADERS >= BROKER_HEADERS | ROUTING_HEADERS
