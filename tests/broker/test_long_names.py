"""Names and routing keys of more than 255 bytes, which AMQP cannot transfer: they are refused where they enter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.support.blocking_client import Channel, Connection
from tests.support.broker_behaviour import Behaviour
from tests.support.dead_letters import arrived, reasons
from tests.support.frames import method, short
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.queue_arguments import DURABLE, QUORUM, declare, failed, text
from tests.support.raw_client import RawClient, made
from tests.support.shovels import ShovelHost
from warren.broker import BrokerConfig
from warren.broker.model.operator_errors import OperationRefused
from warren.broker.model.policy.policies import Definition, Policy
from warren.wire import field_tables

LONG = "k" * 256
ACCENTED = "\u00e9" * 128
"""Text of 256 bytes and half as many characters."""
LONGEST = "k" * 255
DLX, KEY = "x-dead-letter-exchange", "x-dead-letter-routing-key"


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[InProcessBroker]:
    """Run a broker with a data folder, a control socket and the HTTP API in this process."""
    config = BrokerConfig(management_port=0, handshake_timeout=PATIENCE, login_failure_delay=0)
    with InProcessBroker(tmp_path / "data", config=config) as broker:
        yield broker


@pytest.fixture
def api(stored: InProcessBroker) -> HttpApi:
    return HttpApi(base_url(stored))


@pytest.fixture
def operator(stored: InProcessBroker) -> Operator:
    assert stored.data_dir is not None
    return Operator(warren_ctl(stored.data_dir), stored.url, is_warren=True)


def base_url(broker: InProcessBroker) -> str:
    assert broker.broker is not None
    return f"http://{broker.broker.management_addresses[0]}"


# -- declarations


@pytest.mark.parametrize("quorum", [False, True], ids=["classic", "quorum"])
@pytest.mark.parametrize("value", [LONG, ACCENTED], ids=["letters", "accents"])
@pytest.mark.parametrize("which", [DLX, KEY])
def test_a_dead_letter_exchange_or_key_has_at_most_255_bytes(
    peer: RawClient, server: Behaviour, name: str, which: str, value: str, quorum: bool
) -> None:
    """RabbitMQ takes it, and closes the connection that rejects a message of the queue."""
    arguments = {DLX: text("amq.fanout"), which: text(value)}
    fields = [*arguments.items(), *([QUORUM] if quorum else [])]
    found = declare(peer, name, *fields, flags=DURABLE)
    if not server.is_warren:
        assert found == name
        peer.call(made(commands.Queue.Delete, queue=name), 1, commands.Queue.DeleteOk)
        return
    described = f"invalid arg '{which}' for queue '{name}' in vhost '/'"
    assert found == failed(406, f'{described}: "expected at most 255 bytes, got 256"')
    assert peer.refused(made(commands.Queue.Declare, queue=name, passive=True)).code == 404


def test_a_dead_letter_key_may_have_255_bytes(channel: Channel, name: str) -> None:
    dead = channel.declare(exclusive=True)
    channel.bind(dead, "amq.fanout")
    channel.declare(
        name, exclusive=True, x_dead_letter_exchange="amq.fanout", x_dead_letter_routing_key=LONGEST
    )
    channel.publish(name, b"x")
    message = channel.get(name)
    assert message is not None
    channel.reject(message.tag)
    assert arrived(channel, dead).carrier.routing_key == LONGEST


def test_an_alternate_exchange_has_at_most_255_bytes(peer: RawClient, server: Behaviour, name: str) -> None:
    arguments = {"alternate-exchange": LONGEST}
    peer.declare_exchange(name, "fanout", arguments=arguments)
    peer.call(made(commands.Exchange.Delete, exchange=name), 1, commands.Exchange.DeleteOk)
    arguments["alternate-exchange"] = ACCENTED
    declaration = made(commands.Exchange.Declare, exchange=name, exchange_type="fanout", arguments=arguments)
    if not server.is_warren:
        peer.call(declaration, 1, commands.Exchange.DeclareOk)
        peer.call(made(commands.Exchange.Delete, exchange=name), 1, commands.Exchange.DeleteOk)
        return
    found = peer.refused(declaration)
    described = f"invalid arg 'alternate-exchange' for exchange '{name}' in vhost '/'"
    expected = f'PRECONDITION_FAILED - {described}: "expected at most 255 bytes, got 256"'
    assert (found.scope, found.code, found.text) == ("channel", 406, expected)


# -- the HTTP API, policies, `warren ctl`, definitions


TOO_LONG = '"expected at most 255 bytes, got 256"'


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (
            "queues/%2F/q",
            {"arguments": {DLX: "amq.fanout", KEY: LONG}},
            f"invalid arg '{KEY}' for queue 'q' in vhost '/': {TOO_LONG}",
        ),
        (
            "queues/%2F/q",
            {"arguments": {DLX: LONG}},
            f"invalid arg '{DLX}' for queue 'q' in vhost '/': {TOO_LONG}",
        ),
        (
            "exchanges/%2F/e",
            {"type": "fanout", "arguments": {"alternate-exchange": LONG}},
            f"invalid arg 'alternate-exchange' for exchange 'e' in vhost '/': {TOO_LONG}",
        ),
        *(
            (
                "policies/%2F/p",
                {"pattern": ".*", "definition": {key: ACCENTED}},
                f"Validation failed\n\n{key} should be at most 255 bytes, actually was 256",
            )
            for key in ("dead-letter-exchange", "dead-letter-routing-key", "alternate-exchange")
        ),
        (
            f"vhosts/{LONG}",
            {},
            "the name of a virtual host should be at most 255 bytes, actually was 256",
        ),
    ],
)
def test_the_http_api_answers_400(api: HttpApi, path: str, body: dict[str, object], reason: str) -> None:
    found = api.ask("PUT", path, body)
    assert (found.status, found.body["reason"].strip()) == (400, reason)
    assert api.ask("GET", path).status == 404


def test_a_property_of_a_published_message_is_named(api: HttpApi) -> None:
    body = {"routing_key": "q", "properties": {"app_id": LONG}, "payload": "", "payload_encoding": "string"}
    found = api.ask("POST", "exchanges/%2F/amq.fanout/publish", body)
    reason = "a property is out of range: app_id is longer than 255 bytes"
    assert (found.status, found.body["reason"]) == (400, reason)


def test_a_command_refuses_it_in_one_line(operator: Operator) -> None:
    for words, reason in (
        (
            ("set_policy", "p", ".*", json.dumps({"dead-letter-routing-key": LONG})),
            "dead-letter-routing-key should be at most 255 bytes, actually was 256",
        ),
        (("add_vhost", LONG), "the name of a virtual host should be at most 255 bytes, actually was 256"),
    ):
        found = operator.refused(*words)
        assert reason in found
        assert found.count("\n") == 1
    assert operator.table("list_policies") == []


@pytest.mark.parametrize("vhost", ["", ACCENTED])
def test_the_default_virtual_host_has_a_name_that_clients_can_open(vhost: str) -> None:
    with pytest.raises(ValueError, match=r"default_vhost has \d+ bytes; it must have from 1 to 255"):
        BrokerConfig(default_vhost=vhost)
    BrokerConfig(default_vhost=LONGEST)


# -- texts of messages and of shovels


def test_a_dead_letter_whose_headers_name_such_a_key_is_not_replayed(
    api: HttpApi, stored: InProcessBroker
) -> None:
    """The headers of the SDK say where a dead letter was published; a client may send any."""
    with Connection(stored.url) as connection:
        channel = connection.channel()
        channel.declare("dead", durable=True)
        channel.declare("work", durable=True)
        channel.bind("work", "amq.fanout")
        origin = {"warren-dead-reason": "failed", "warren-exchange": "amq.fanout"}
        channel.confirm()
        channel.publish("dead", b"long", delivery_mode=2, headers={**origin, "warren-key": LONG})
        channel.publish("dead", b"good", delivery_mode=2, headers={**origin, "warren-key": "k"})
        channel.settled_until(2)

        found = api.ask("POST", "warren/queues/%2F/dead/messages/replay", {"all": True})

        assert (found.status, found.body["done"]) == (200, 1), found
        assert [each["reason"] for each in found.body["failed"]] == [
            "the routing key in its headers is longer than 255 bytes"
        ]
        assert channel.drain("work") == [b"good"]
        assert channel.drain("dead") == [b"long"]


def test_a_trace_key_that_is_too_long_is_cut_between_two_characters(
    api: HttpApi, stored: InProcessBroker
) -> None:
    api.put("vhosts/%2F", {"tracing": True})
    queue = "\u00e9" * 124
    path = "queues/%2F/" + "%C3%A9" * 124
    api.put(path, {"durable": False})
    with Connection(stored.url) as connection, RawClient(stored.url) as peer:
        channel = connection.channel()
        traced = channel.declare(exclusive=True)
        channel.bind(traced, "amq.rabbitmq.trace", "deliver.#")
        body = {"routing_key": queue, "properties": {}, "payload": "x", "payload_encoding": "string"}
        assert api.ask("POST", "exchanges/%2F/amq.default/publish", body).body == {"routed": True}
        peer.connect().open()
        peer.send_bytes(method(1, (60, 70), b"\0\0" + short(queue) + b"\1"))
        assert peer.receive_message(commands.Basic.GetOk).body == b"x"
        assert arrived(channel, traced).carrier.routing_key == "deliver." + "\u00e9" * 123


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *(
            ({"src_queue": "a", "dest_queue": "b", key: ACCENTED}, key)
            for key in ("src_queue", "dest_queue", "src_consumer_name")
        ),
        *(
            ({"src_exchange": "a", "dest_queue": "b", key: ACCENTED}, key)
            for key in ("src_exchange", "src_exchange_key")
        ),
        *(
            ({"src_queue": "a", "dest_exchange": "b", key: ACCENTED}, key)
            for key in ("dest_exchange", "dest_exchange_key")
        ),
    ],
)
def test_a_shovel_has_names_and_keys_of_at_most_255_bytes(
    inprocess: InProcessBroker, changes: dict[str, str], reason: str
) -> None:
    """RabbitMQ checks `dest-queue` only; a shovel with another such name does not start."""
    shovels = ShovelHost(inprocess)
    key = reason.replace("_", "-")
    with pytest.raises(OperationRefused, match=f"{key} should be less than 255 bytes, actually was 256"):
        shovels.define(**changes)
    assert not shovels.is_defined()


def test_a_shovel_connects_to_a_virtual_host_that_can_be_opened(inprocess: InProcessBroker) -> None:
    shovels = ShovelHost(inprocess)
    with pytest.raises(OperationRefused, match="virtual host in dest-uri should be at most 255 bytes"):
        shovels.define(src_queue="a", dest_queue="b", dest_uri=f"amqp:///{LONG}")
    arguments = {DLX: "amq.fanout", KEY: LONG}
    with pytest.raises(OperationRefused, match=f"invalid arg '{KEY}' in dest-queue-args: {TOO_LONG}"):
        shovels.define(src_queue="a", dest_queue="b", dest_queue_args=arguments)


# -- data folders of earlier versions, which accepted such names


def store_what_earlier_versions_accepted(broker: InProcessBroker) -> None:
    """Store two queues, two policies, an exchange and a virtual host that new declarations are refused."""

    def store() -> None:
        assert broker.broker is not None
        hosts = broker.broker.virtual_hosts
        topology = hosts.declarations[b"/"]

        def queue(name: bytes, **arguments: str) -> None:
            raw = field_tables.encode({**arguments})
            topology.declare_queue(name, True, False, False, raw, None, is_restored=True)

        topology.declare_queue(b"dead", True, False, False, b"", None)
        topology.bind(topology.exchange(b"amq.fanout"), topology.queue(b"dead", None), b"", b"")
        queue(b"work", **{DLX: "amq.fanout", KEY: LONG})
        queue(b"lost", **{DLX: LONG})
        queue(b"by-policy")
        raw = field_tables.encode({"alternate-exchange": LONG})
        topology.declare_exchange(b"e", b"direct", True, False, False, raw, is_restored=True)
        assert broker.broker._management is not None
        parameters = broker.broker._management.parameters
        definitions: dict[str, Definition] = {
            "^by-policy$": {
                "dead-letter-exchange": "amq.fanout",
                "dead-letter-routing-key": LONG,
                "max-length": 1,
            },
            "^amq.direct$": {"alternate-exchange": LONG},
            "^nothing$": {"dead-letter-routing-key": LONG},
        }
        for pattern, definition in definitions.items():
            policy = Policy(pattern, pattern, definition)
            parameters.set_policy(topology.vhost, policy, is_restored=True)
        hosts.add(LONG, is_restored=True)

    broker.call(store)
    broker.restart()


def test_a_stored_key_that_is_too_long_has_no_effect(
    stored: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    store_what_earlier_versions_accepted(stored)

    lines = [each.getMessage() for each in caplog.records if "_ignored" in each.getMessage()]
    assert lines == [
        *(
            f"event=policy.setting_ignored name='{name}' setting=dead-letter-routing-key "
            "reason='it is longer than 255 bytes'"
            for name in ("^by-policy$", "^nothing$")
        ),
        f"event=queue.argument_ignored queue=\"queue 'work' in vhost '/'\" argument={KEY} "
        "reason='it is longer than 255 bytes'",
    ]
    with Connection(stored.url) as connection:
        channel = connection.channel()
        channel.confirm()
        for queue in ("work", "lost"):
            channel.publish(queue, b"1", delivery_mode=2)
            message = channel.get(queue)
            assert message is not None
            channel.reject(message.tag)
        channel.publish("by-policy", b"1", delivery_mode=2)
        channel.publish("by-policy", b"2", delivery_mode=2)
        channel.publish("nobody", b"", exchange="e")
        channel.publish("nobody", b"", exchange="amq.direct")
        channel.settled_until(6)
        for queue, reason in (("work", "rejected"), ("by-policy", "maxlen")):
            letter = arrived(channel, "dead")
            assert (letter.carrier.routing_key, reasons(letter)) == (queue, [(queue, reason, 1)])
        assert channel.drain("by-policy") == [b"2"]
        # The same declaration is still that of the queue.
        channel.declare(
            "work", durable=True, x_dead_letter_exchange="amq.fanout", x_dead_letter_routing_key=LONG
        )


def test_stored_names_that_are_too_long_do_not_refuse_imports(stored: InProcessBroker) -> None:
    store_what_earlier_versions_accepted(stored)
    api = HttpApi(base_url(stored))

    found = api.ask("POST", "definitions", {"queues": [{"vhost": "/", "name": "new", "arguments": {}}]})

    assert found.status == 204, found
    names = {queue["name"] for queue in api.get("definitions")["queues"]}
    assert names == {"dead", "work", "lost", "by-policy", "new"}
    # A copy of an existing queue is new in another broker, or under another name.
    arguments = {DLX: "amq.fanout", KEY: LONG}
    found = api.ask("POST", "definitions", {"queues": [{"vhost": "/", "name": "q", "arguments": arguments}]})
    reason = f"queues[0] 'q' in vhost '/': invalid arg '{KEY}' for queue 'q' in vhost '/': {TOO_LONG}"
    assert (found.status, found.body["reason"]) == (400, reason)


def test_no_message_is_published_to_an_exchange_whose_name_is_too_long(stored: InProcessBroker) -> None:
    def store() -> None:
        assert stored.broker is not None
        topology = stored.broker.virtual_hosts.declarations[b"/"]
        exchange = topology.declare_exchange(LONG.encode(), b"fanout", True, False, False, b"")
        queue = topology.declare_queue(b"q", True, False, False, b"", None)
        topology.bind(exchange, queue, b"", b"")
        raw = field_tables.encode({DLX: LONG})
        topology.declare_queue(b"work", True, False, False, raw, None, is_restored=True)

    stored.call(store)
    stored.restart()
    api = HttpApi(base_url(stored))
    body = {"routing_key": "", "properties": {}, "payload": "x", "payload_encoding": "string"}

    found = api.ask("POST", f"exchanges/%2F/{LONG}/publish", body)

    reason = "exchange should be less than 255 bytes, actually was 256\n"
    assert (found.status, found.body["reason"]) == (400, reason)
    with Connection(stored.url) as connection:
        channel = connection.channel()
        channel.publish("work", b"1")
        message = channel.get("work")
        assert message is not None
        channel.reject(message.tag)
        assert channel.ready("work") == channel.ready("q") == 0
