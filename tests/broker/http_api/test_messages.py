"""Messages of a queue over HTTP: they are got, put back, acknowledged or rejected."""

from __future__ import annotations

import base64

import pytest

from tests.support.blocking_client import Channel
from tests.support.http_client import Answer, HttpApi
from tests.support.in_process_broker import InProcessBroker
from warren.broker.http_api.message_json import BASE64_STEP
from warren.broker.model.vhost.bulk_publish import BULK_COPIES
from warren.wire.field_tables import MAX_VALUES

COUNT = 100
BODIES = [str(number).encode() for number in range(COUNT)]


def asked(mode: str, count: int = COUNT) -> dict[str, object]:
    return {"count": count, "ackmode": mode, "encoding": "auto"}


def test_a_quorum_queue_with_a_single_active_consumer_is_not_got_from(api: HttpApi, channel: Channel) -> None:
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    api.put("queues/%2f/q", {"durable": True, "arguments": arguments})
    channel.publish("q", b"kept")

    found = api.ask("POST", "queues/%2f/q/get", asked("ack_requeue_false"))

    assert found.status == 400
    assert found.body["reason"] == (
        "cannot obtain access to locked queue 'q' in vhost '/'. basic.get operations are not supported by "
        '<<"quorum">> queues with single active consumer'
    )
    channel.consume("q")
    assert [message.body for message in channel.deliveries(1)] == [b"kept"]


@pytest.mark.parametrize(
    ("mode", "left", "rejected"),
    [
        ("ack_requeue_true", BODIES, []),
        ("reject_requeue_true", BODIES, []),
        ("ack_requeue_false", [], []),
        ("reject_requeue_false", [], BODIES),
    ],
)
def test_many_messages_are_settled_in_slices_and_keep_their_order(
    served: InProcessBroker,
    api: HttpApi,
    channel: Channel,
    mode: str,
    left: list[bytes],
    rejected: list[bytes],
) -> None:
    api.put("queues/%2f/dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    api.put("queues/%2f/q", {"arguments": arguments})
    channel.confirm()
    for body in BODIES:
        channel.publish("q", body)
    channel.settled(COUNT)
    work = served.virtual_host().bulk_work
    work.slice_seconds = 0
    before = work.slices

    found = api.ask("POST", "queues/%2f/q/get", asked(mode))

    assert [each["payload"].encode() for each in found.body] == BODIES
    assert work.slices > before + 1
    assert channel.drain("q") == left
    assert channel.drain("dead") == rejected
    assert api.get("queues/%2f/q")["messages"] == 0


def test_a_virtual_host_with_all_its_queues_refuses_a_further_one(api: HttpApi) -> None:
    api.put("vhosts/small")
    api.put("permissions/small/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    api.put("vhost-limits/small/max-queues", {"value": 1})
    api.put("queues/small/one")
    api.put("queues/small/one")

    found = api.ask("PUT", "queues/small/two", {})

    assert found.status == 400
    assert found.body["reason"] == "cannot declare queue 'two': queue limit in vhost 'small' (1) is reached"


def test_nothing_is_published_during_an_alarm(served: InProcessBroker, api: HttpApi) -> None:
    """RabbitMQ takes it; over AMQP, neither broker does."""
    api.put("queues/%2f/q")
    message = {"routing_key": "q", "properties": {}, "payload": "x", "payload_encoding": "string"}
    assert served.broker is not None
    flow = served.broker._running.flow
    served.call(lambda: flow.set_alarm("test", "memory", True))
    found = api.ask("POST", "exchanges/%2f/amq.default/publish", message)
    assert (found.status, found.body["reason"]) == (400, "publishers are blocked: low on memory")
    served.call(lambda: flow.set_alarm("test", "memory", False))
    assert api.ask("POST", "exchanges/%2f/amq.default/publish", message).body == {"routed": True}


def test_integers_in_headers_and_arguments_have_64_bits(api: HttpApi, channel: Channel) -> None:
    """Bindings of headers exchanges compare types, and consumers in typed languages read them."""
    given = {"a": 1, "b": -1, "c": [1, True], "d": {"e": 2**40}}
    channel.declare("q")
    message = {
        "routing_key": "q",
        "properties": {"headers": given},
        "payload": "",
        "payload_encoding": "string",
    }
    assert api.ask("POST", "exchanges/%2f/amq.default/publish", message).status == 200

    received = channel.get("q", no_ack=True)

    assert received is not None
    wanted = b"\x01al" + (1).to_bytes(8, "big") + b"\x01bl" + b"\xff" * 8
    assert wanted in received.header
    assert b"\x01cA\x00\x00\x00\x0bl" + (1).to_bytes(8, "big") + b"t\x01" in received.header
    assert received.headers == given


@pytest.mark.parametrize("value", [None, [None], {"a": None}])
def test_null_is_refused_in_headers_and_arguments(api: HttpApi, value: object) -> None:
    message = {
        "routing_key": "q",
        "properties": {"headers": {"a": value}},
        "payload": "",
        "payload_encoding": "string",
    }
    for method, path, body in (
        ("POST", "exchanges/%2f/amq.default/publish", message),
        ("PUT", "queues/%2f/q", {"arguments": {"a": value}}),
    ):
        found = api.ask(method, path, body)
        assert (found.status, found.body["reason"]) == (400, "null_not_allowed")


@pytest.mark.parametrize(
    "size", [0, 1, 2, 3, BASE64_STEP // 4 * 3, BASE64_STEP // 4 * 3 + 1, BASE64_STEP + 5]
)
def test_a_payload_in_base64_arrives_as_it_is(api: HttpApi, size: int) -> None:
    api.put("queues/%2f/q")
    payload = base64.b64encode(bytes(size)).decode()
    assert published(api, payload).body == {"routed": True}
    (found,) = api.ask("POST", "queues/%2f/q/get", asked("ack_requeue_false") | {"encoding": "base64"}).body
    assert (found["payload"], found["payload_bytes"]) == (payload, size)


@pytest.mark.parametrize(
    "payload",
    [
        "=",
        "QQ",
        "QQ=",
        "QQ==QQ==",
        "Q===",
        "QQ==" + "A" * BASE64_STEP,
        "A" * BASE64_STEP + "Q",
        "!" * BASE64_STEP,
    ],
)
def test_what_is_no_base64_is_refused(api: HttpApi, payload: str) -> None:
    found = published(api, payload)
    assert (found.status, found.body["reason"]) == (400, ["not_base64", payload[:100]])


def published(api: HttpApi, payload: str) -> Answer:
    message = {"routing_key": "q", "properties": {}, "payload": payload, "payload_encoding": "base64"}
    return api.ask("POST", "exchanges/%2f/amq.default/publish", message)


@pytest.mark.parametrize("full", [False, True])
def test_a_message_for_very_many_queues_is_put_into_them_in_slices(
    served: InProcessBroker, api: HttpApi, channel: Channel, full: bool
) -> None:
    names = [f"q{number}" for number in range(BULK_COPIES + 1)]
    for name in names:
        channel.declare(name, exclusive=True)
        channel.bind(name, "amq.fanout")
    if full:
        channel.declare("full", exclusive=True, x_max_length=0, x_overflow="reject-publish")
        channel.bind("full", "amq.fanout")
    work = served.virtual_host().bulk_work
    work.slice_seconds = 0
    slices = work.slices
    message = {"routing_key": "", "properties": {}, "payload": "x", "payload_encoding": "string"}

    found = api.ask("POST", "exchanges/%2f/amq.fanout/publish", message)

    assert work.slices > slices
    assert found.status == (400 if full else 200), found
    assert [channel.ready(name) for name in names] == [1] * len(names)


def test_arguments_have_as_many_values_as_over_amqp(api: HttpApi) -> None:
    api.put("exchanges/%2f/e", {"type": "headers"})
    api.put("queues/%2f/q")

    def bound(count: int) -> int:
        arguments = {f"h{number}": number for number in range(count)}
        return api.ask("POST", "bindings/%2f/e/e/q/q", {"routing_key": "", "arguments": arguments}).status

    assert bound(MAX_VALUES) == 201
    assert bound(MAX_VALUES + 1) == 400


def test_very_many_headers_arrive(api: HttpApi, channel: Channel) -> None:
    channel.declare("q")
    headers = {f"h{number}": number for number in range(9_000)} | {"inner": [{"a": [True, "x"]}, 1.5]}
    message = {
        "routing_key": "q",
        "properties": {"headers": headers},
        "payload": "",
        "payload_encoding": "string",
    }
    assert api.ask("POST", "exchanges/%2f/amq.default/publish", message).body == {"routed": True}
    got = channel.get("q")
    assert got is not None
    assert got.headers == headers
