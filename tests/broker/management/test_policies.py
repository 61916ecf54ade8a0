"""Policies on live queues and exchanges, with the same behaviour on Warren and RabbitMQ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.management.conftest import SetPolicy
from tests.support.blocking_client import Channel, Connection
from tests.support.dead_letters import arrived, reasons
from tests.support.in_process_broker import InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.polling import wait_until
from tests.support.rabbitmq import RabbitMQ
from tests.support.restarts import ENDS
from warren.broker import BrokerConfig


def exact(name: str) -> str:
    return f"^{name}$"


def test_a_length_limit_drops_messages_at_once(
    channel: Channel, operator: Operator, set_policy: SetPolicy, name: str
) -> None:
    dead_letter_queue = channel.declare(exclusive=True)
    channel.declare(
        name, exclusive=True, x_dead_letter_exchange="", x_dead_letter_routing_key=dead_letter_queue
    )
    channel.confirm()
    for body in (b"1", b"2", b"3"):
        channel.publish(name, body)
    channel.settled_until(3)
    policy = set_policy(exact(name), '{"max-length":2}')
    letter = arrived(channel, dead_letter_queue)
    assert (letter.body, reasons(letter)) == (b"1", [(name, "maxlen", 1)])
    assert channel.ready(name) == 2
    assert operator.queue(name, "policy")["policy"] == policy
    # A stricter one, then none.
    operator("set_policy", policy, exact(name), '{"max-length-bytes":1}')
    assert arrived(channel, dead_letter_queue).body == b"2"
    operator("clear_policy", policy)
    channel.publish(name, b"4")
    channel.settled_until(4)
    assert channel.drain(name) == [b"3", b"4"]
    assert operator.queue(name, "policy")["policy"] == ""


def test_a_queue_argument_overrides_the_dead_letter_exchange_of_a_policy(
    channel: Channel, set_policy: SetPolicy, name: str
) -> None:
    dead_letter_queue, other = channel.declare(exclusive=True), channel.declare(exclusive=True)
    channel.declare(f"{name}-plain", exclusive=True)
    channel.declare(f"{name}-own", exclusive=True, x_dead_letter_exchange="", x_dead_letter_routing_key=other)
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": dead_letter_queue}
    set_policy(f"^{name}-", json.dumps(definition))
    for queue, target in ((f"{name}-plain", dead_letter_queue), (f"{name}-own", other)):
        channel.publish(queue, b"x")
        message = channel.get(queue)
        assert message is not None
        channel.reject(message.tag)
        assert reasons(arrived(channel, target)) == [(queue, "rejected", 1)]


def test_the_smaller_of_argument_and_policy_applies(
    channel: Channel, set_policy: SetPolicy, name: str
) -> None:
    channel.declare(f"{name}-small", exclusive=True, x_max_length=1)
    channel.declare(f"{name}-large", exclusive=True, x_max_length=5)
    set_policy(f"^{name}-", '{"max-length":2}')
    channel.confirm()
    for queue in (f"{name}-small", f"{name}-large"):
        for body in (b"1", b"2", b"3"):
            channel.publish(queue, body)
    channel.settled_until(6)
    assert channel.drain(f"{name}-small") == [b"3"]
    assert channel.drain(f"{name}-large") == [b"2", b"3"]


def test_an_operator_policy_limits_other_policies(
    channel: Channel, operator: Operator, set_policy: SetPolicy, name: str
) -> None:
    channel.declare(name, exclusive=True)
    set_policy(exact(name), '{"max-length":4,"max-length-bytes":2}')
    set_policy(exact(name), '{"max-length":3,"max-length-bytes":5}', operator_policy=True)
    channel.confirm()
    for _ in range(4):
        channel.publish(name, b"x")
    channel.settled_until(4)
    assert channel.ready(name) == 2
    for _ in range(4):
        channel.publish(name, b"")
    channel.settled_until(8)
    assert channel.ready(name) == 3


def test_a_policy_can_refuse_publishes(channel: Channel, set_policy: SetPolicy, name: str) -> None:
    channel.declare(name, exclusive=True)
    channel.confirm()
    set_policy(exact(name), '{"max-length":1,"overflow":"reject-publish"}')
    channel.publish(name, b"1")
    channel.publish(name, b"2")
    assert channel.settled(2) == [True, False]
    assert channel.drain(name) == [b"1"]


def test_a_message_ttl_applies_to_later_messages(
    channel: Channel, operator: Operator, set_policy: SetPolicy, name: str
) -> None:
    channel.declare(name, exclusive=True)
    channel.confirm()
    policy = set_policy(exact(name), '{"message-ttl":1}')
    # With confirms: the command uses another connection, and the broker may not have read an unconfirmed publish yet.
    channel.publish(name, b"dies")
    channel.settled_until(1)
    wait_until(lambda: channel.ready(name) == 0, "the message has expired")
    operator("clear_policy", policy)
    channel.publish(name, b"lives")
    channel.settled_until(2)
    set_policy(exact(name), '{"message-ttl":1}')
    assert channel.drain(name) == [b"lives"]


def test_a_policy_can_expire_a_queue(channel: Channel, set_policy: SetPolicy, name: str) -> None:
    channel.declare(name)
    set_policy(exact(name), '{"expires":1}')

    def gone() -> bool:
        return not channel.exists(name)

    wait_until(gone, "the queue has expired")


def test_a_policy_sets_and_clears_an_alternate_exchange(
    channel: Channel, operator: Operator, set_policy: SetPolicy, name: str
) -> None:
    queue = channel.declare(exclusive=True)
    channel.declare_exchange(f"{name}-caught", "fanout")
    channel.bind(queue, f"{name}-caught")
    channel.declare_exchange(name, "direct")
    channel.confirm()
    policy = set_policy(exact(name), json.dumps({"alternate-exchange": f"{name}-caught"}))
    channel.publish("nowhere", b"1", exchange=name)
    channel.settled_until(1)
    operator("clear_policy", policy)
    channel.publish("nowhere", b"2", exchange=name)
    channel.settled_until(2)
    assert channel.drain(queue) == [b"1"]
    channel.delete_exchange(name)
    channel.delete_exchange(f"{name}-caught")


def test_a_policy_applies_to_queues_that_are_declared_later(
    channel: Channel, operator: Operator, set_policy: SetPolicy, name: str
) -> None:
    policy = set_policy(exact(name), '{"max-length":0}')
    channel.declare(name, exclusive=True)
    channel.confirm()
    channel.publish(name, b"x")
    channel.settled_until(1)
    assert channel.ready(name) == 0
    assert operator.queue(name, "policy")["policy"] == policy


def test_the_policy_with_the_highest_priority_applies(
    channel: Channel, operator: Operator, set_policy: SetPolicy, name: str
) -> None:
    channel.declare(name, exclusive=True)
    # The pattern matches anywhere in the name.
    low = set_policy(name[10:], '{"max-length":9}', "--apply-to", "queues")
    high = set_policy(name[5:], '{"max-length":7}', "--priority", "1")
    assert operator.queue(name, "policy")["policy"] == high
    operator("set_policy", high, name[5:], '{"max-length":7}', "--priority", "1", "--apply-to", "exchanges")
    assert operator.queue(name, "policy")["policy"] == low
    operator("set_policy", high, name[5:], '{"max-length":7}', "--priority=-1")
    assert operator.queue(name, "policy")["policy"] == low


REFUSED = [
    ("(", '{"max-length":1}', "pattern should be regular expression but is invalid: "),
    (".*", '{"max-length":-1}', "-1 is not a valid maximum length"),
    (".*", '{"max-length":1.5}', "1.5 is not a valid maximum length"),
    (
        ".*",
        '{"max-length":[1,"a",{"b":true}]}',
        '[1,<<"a">>,#{<<"b">> => true}] is not a valid maximum length',
    ),
    (".*", '{"message-ttl":"x"}', '<<"x">> is not a valid message TTL'),
    (".*", '{"expires":0}', "0 is not a valid queue expiry"),
    (".*", '{"overflow":"x"}', '<<"x">> is not a valid overflow value'),
    (".*", '{"queue-mode":"x"}', '<<"x">> is not a valid queue-mode value'),
    (".*", '{"dead-letter-exchange":null}', "null is not a valid dead letter exchange name"),
    (".*", '{"ha-mode":"x"}', '<<"x">> is not a valid ha-mode value'),
    (".*", '{"ha-mode":"exactly"}', 'ha-mode="exactly" takes an integer, none given'),
    (".*", "{}", "no policy provided"),
    (
        ".*",
        '{"nonsense":1,"other":"x","message-ttl":5}',
        '[{<<"nonsense">>,1},{<<"other">>,<<"x">>}] are not recognised policy settings',
    ),
]


@pytest.mark.parametrize(("pattern", "definition", "text"), REFUSED)
def test_an_invalid_policy_is_refused_and_changes_nothing(
    warren: Operator, pattern: str, definition: str, text: str
) -> None:
    errors = warren.refused("set_policy", "wrong", pattern, definition)
    assert errors.startswith(f"warren ctl: Validation failed: {text}")
    assert errors.count("\n") == 1
    assert warren("list_policies") == []


def test_rabbitmq_refuses_invalid_policies_with_the_same_texts(rabbit: Operator, rabbitmq: RabbitMQ) -> None:
    pairs = ", ".join(f"{{{term(pattern)}, {term(definition)}}}" for pattern, definition, _ in REFUSED)
    (errors,) = rabbit.run(
        "eval",
        '[rabbit_policy:parse_set(<<"/">>, <<"wrong">>, Pattern, Definition, 0, <<"all">>, <<"me">>)'
        f" || {{Pattern, Definition}} <- [{pairs}]].",
    )[1:2]
    refusals = errors.split("error_string")[1:]
    assert len(refusals) == len(REFUSED)
    for refusal, (_, definition, text) in zip(refusals, REFUSED, strict=True):
        if definition.startswith('{"ha-') and not rabbitmq.version.startswith("3."):
            text = "are not recognised policy settings"  # Mirrored queues are gone.
        assert "".join(text.split()) in "".join(refusal.replace('\\"', '"').split())


def term(text: str) -> str:
    """Return a text as an Erlang binary term."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'<<"{escaped}">>'


def test_an_operator_policy_can_only_set_limits(warren: Operator) -> None:
    errors = warren.refused("set_operator_policy", "wrong", ".*", '{"dead-letter-exchange":"x"}')
    assert '[{<<"dead-letter-exchange">>,<<"x">>}] are not recognised policy settings' in errors


def test_policies_are_listed_as_they_were_set(operator: Operator, set_policy: SetPolicy) -> None:
    policy = set_policy("^a", '{"message-ttl":1, "max-length":2}', "--priority", "3", "--apply-to", "queues")
    bound = set_policy("^b", '{"max-length":900000}', operator_policy=True)
    header, *rows = operator("list_policies")
    assert header == "vhost\tname\tpattern\tapply-to\tdefinition\tpriority"
    assert f'/\t{policy}\t^a\tqueues\t{{"max-length":2,"message-ttl":1}}\t3' in rows
    assert bound in [row["name"] for row in operator.table("list_operator_policies")]
    operator("clear_policy", policy)
    assert "Parameter does not exist" in operator.refused("clear_policy", policy)


# -- what RabbitMQ 3.10 does not have


def test_policies_for_one_type_of_queue(warren: Operator) -> None:
    with Connection(warren.url) as connection:
        channel = connection.channel()
        channel.declare("of-classic", durable=True)
        channel.declare("of-quorum", durable=True, x_queue_type="quorum")
        warren("set_policy", "classic", "^of-", '{"max-length":3}', "--apply-to", "classic_queues")
        assert warren.queue("of-classic", "policy")["policy"] == "classic"
        assert warren.queue("of-quorum", "policy")["policy"] == ""
        # A policy with a key that a queue type does not support does not apply to queues of that type.
        warren("set_policy", "classic", "^of-", '{"max-length":3,"queue-mode":"lazy"}')
        assert warren.queue("of-quorum", "policy")["policy"] == ""
        warren("clear_policy", "classic")


def test_a_policy_sets_the_delivery_limit(timed: InProcessBroker) -> None:
    assert timed.data_dir is not None
    operator = Operator(warren_ctl(timed.data_dir), timed.url, is_warren=True)
    with Connection(timed.url) as connection:
        channel = connection.channel()
        for queue, kind in (("plain", "classic"), ("safe", "quorum")):
            channel.declare(queue, durable=True, x_queue_type=kind)
            operator("set_policy", queue, f"^{queue}$", '{"delivery-limit":1}')
            channel.publish(queue, b"x")
            for _ in range(2):
                message = channel.get(queue)
                assert message is not None
                channel.reject(message.tag, requeue=True)
            assert channel.get(queue) is None
        # Twenty is the default limit of a quorum queue; a policy may set a higher one.
        operator("set_policy", "safe", "^safe$", '{"delivery-limit":30}')
        channel.publish("safe", b"x")
        for _ in range(30):
            message = channel.get("safe")
            assert message is not None
            channel.reject(message.tag, requeue=True)
        assert channel.ready("safe") == 1


def test_ttl_and_expiry_of_a_policy_follow_the_clock(timed: InProcessBroker) -> None:
    assert timed.data_dir is not None
    operator = Operator(warren_ctl(timed.data_dir), timed.url, is_warren=True)
    with Connection(timed.url) as connection:
        channel = connection.channel()
        channel.declare("slow", x_message_ttl=5000, x_expires=60_000)
        operator("set_policy", "time", "^slow$", '{"message-ttl":2000,"expires":90000}')
        channel.publish("slow", b"x")
        assert channel.ready("slow") == 1
        timed.advance(1.9)
        assert channel.ready("slow") == 1
        timed.advance(0.1)
        assert channel.ready("slow") == 0
        # Using the queue restarts its expiry, and so does a policy that changes it.
        operator("set_policy", "time", "^slow$", '{"expires":30000}')
        timed.advance(29.9)
        assert "slow" in [row["name"] for row in operator.table("list_queues")]
        timed.advance(0.1)
        assert operator.table("list_queues") == []


@pytest.mark.parametrize("strict", [False, True])
def test_settings_that_rabbitmq_lacks_are_logged_or_refused(
    tmp_path: Path, strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with InProcessBroker(tmp_path / "data", config=BrokerConfig(strict=strict)) as broker:
        operator = Operator(warren_ctl(tmp_path / "data"), broker.url, is_warren=True)
        mirrors = ("set_policy", "ha", ".*", '{"ha-mode":"all"}')
        if strict:
            text = 'Validation failed: [{<<"ha-mode">>,<<"all">>}] are not recognised policy settings'
            assert operator.refused(*mirrors) == f"warren ctl: {text}\n"
        else:
            operator(*mirrors)
            assert operator("list_policies", "definition")[1:] == ['{"ha-mode":"all"}']
        for _ in range(2):
            operator("set_policy", "limit", ".*", '{"delivery-limit":3}')
        # A broker in strict mode imports nothing of a file that it refuses.
        arguments = {"x-queue-master-locator": "min-masters"}
        queue = {"vhost": "/", "name": "located", "durable": True, "arguments": arguments}
        file = tmp_path / "definitions.json"
        file.write_text(json.dumps({"vhosts": [{"name": "new"}], "queues": [queue]}))
        if strict:
            assert "queue_master_locator" in operator.refused("import_definitions", str(file))
            assert operator("list_vhosts") == ["name", "/"]
        else:
            operator("import_definitions", str(file))
    warnings = [
        line
        for line in caplog.messages
        if line.startswith("event=portability.feature_used operation='set_policy")
    ]
    assert len(warnings) == 2


@pytest.fixture(params=["warren", "rabbit"])
def strict_operator(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Operator]:
    """Yield the operator of a broker with strict checks, and that of the RabbitMQ 4.3 that it follows."""
    if request.param == "rabbit":
        if request.config.getoption("--compat") != "4.3":
            pytest.skip("strict checks follow RabbitMQ 4.3")
        yield request.getfixturevalue("rabbit")
        return
    with InProcessBroker(tmp_path / "data", config=BrokerConfig(strict=True)) as broker:
        yield Operator(warren_ctl(tmp_path / "data"), broker.url, is_warren=True)


def test_strict_refuses_policies_of_mirrored_queues_as_rabbitmq(strict_operator: Operator) -> None:
    errors = strict_operator.refused("set_policy", "ha", "^nothing$", '{"ha-mode":"all"}')
    assert '[{<<"ha-mode">>,<<"all">>}] are not recognised policy settings' in errors
    assert "ha" not in [row["name"] for row in strict_operator.table("list_policies")]


def test_with_strict_a_policy_of_the_delivery_limit_governs_no_classic_queue_as_in_rabbitmq(
    strict_operator: Operator, name: str
) -> None:
    with Connection(strict_operator.url) as connection:
        channel = connection.channel()
        channel.declare(name, durable=True)
        strict_operator("set_policy", name, exact(name), '{"delivery-limit":1}', "--apply-to", "queues")
        assert strict_operator.queue(name, "policy")["policy"] == ""
        channel.publish(name, b"x")
        for _ in range(3):
            message = channel.get(name)
            assert message is not None
            channel.reject(message.tag, requeue=True)
        assert channel.ready(name) == 1
        channel.delete(name)
    strict_operator("clear_policy", name)


def test_a_policy_sets_the_acknowledgement_timeout(timed: InProcessBroker) -> None:
    assert timed.data_dir is not None
    operator = Operator(warren_ctl(timed.data_dir), timed.url, is_warren=True)
    with Connection(timed.url) as connection:
        channel, other = connection.channel(), connection.channel()
        other.declare("work", exclusive=True, x_consumer_timeout=60_000)
        operator("set_policy", "patience", "^work$", '{"consumer-timeout":2000}')
        channel.consume("work")
        channel.publish("work", b"x")
        channel.deliveries(1)
        timed.advance(1.9)
        assert other.state("work") == (0, 1)
        timed.advance(0.1)
        error = channel.closed()
        assert (error.code, "Timeout value used: 2000 ms" in error.text) == (406, True)
        del connection.channels[channel.number]
        assert other.state("work") == (1, 0)


REFUSED_SINCE_4_3 = [
    (
        '{"delayed-retry-type":"x"}',
        '<<"x">> is not a valid delayed retry type. Must be one of: all, failed, returned, disabled',
    ),
    (
        '{"delayed-retry-min":0}',
        "0 is not a valid delayed retry minimum delay. Must be a positive integer",
    ),
    (
        '{"delayed-retry-max":"5"}',
        '<<"5">> is not a valid delayed retry maximum delay. Must be a positive integer',
    ),
    ('{"delayed-retry-type":"all"}', "delayed-retry-min is required when delayed-retry-type is all"),
    (
        '{"delayed-retry-min":10,"delayed-retry-max":5}',
        "delayed-retry-max (5) must not be smaller than delayed-retry-min (10)",
    ),
    ('{"target-group-size":0}', "0 is not a valid qq target count value"),
    (
        '{"consumer-disconnected-timeout":-1}',
        "-1 is not a valid consumer disconnected timeout",
    ),
]
"""Definitions with keys of RabbitMQ 4.3, and its texts, observed on 4.3.6."""


@pytest.mark.parametrize(("definition", "text"), REFUSED_SINCE_4_3)
def test_an_invalid_value_of_a_key_of_4_3_is_refused(warren: Operator, definition: str, text: str) -> None:
    errors = warren.refused("set_policy", "wrong", ".*", definition)
    assert errors == f"warren ctl: Validation failed: {text}\n"


def retry(kind: str | None, least: int | None = None, most: int | None = None) -> dict[str, str | int]:
    """Return the settings of delayed retries that are given, by key."""
    named = {"delayed-retry-type": kind, "delayed-retry-min": least, "delayed-retry-max": most}
    return {key: value for key, value in named.items() if value is not None}


@pytest.mark.parametrize(
    ("policy", "operator_policy", "plain", "declared"),
    [
        (retry("failed", 500, 20_000), {}, ("failed", 500, 20_000), ("failed", 500, 9000)),
        (retry("failed", 2000, 3000), {}, ("failed", 2000, 3000), ("failed", 1000, 3000)),
        (retry("disabled"), {}, ("disabled",), ("disabled",)),
        (retry(None, 2000), {}, ("disabled",), ("all", 1000, 9000)),
        (retry(None, None, 3000), {}, ("disabled",), ("all", 1000, 3000)),
        (
            retry("all", 500, 20_000),
            retry("failed", 2000, 3000),
            ("failed", 2000, 3000),
            ("failed", 1000, 3000),
        ),
    ],
)
def test_delayed_retries_of_policies_and_arguments_are_merged_as_by_rabbitmq_4_3(
    timed: InProcessBroker,
    policy: dict[str, str | int],
    operator_policy: dict[str, str | int],
    plain: tuple[str | int, ...],
    declared: tuple[str | int, ...],
) -> None:
    """The results are those in the state of rabbit_fifo on 4.3.6."""
    assert timed.data_dir is not None
    operator = Operator(warren_ctl(timed.data_dir), timed.url, is_warren=True)
    with Connection(timed.url) as connection:
        channel = connection.channel()
        channel.declare("plain", durable=True, x_queue_type="quorum")
        own: dict[str, Any] = {
            "x_" + key.replace("-", "_"): value for key, value in retry("all", 1000, 9000).items()
        }
        channel.declare("declared", durable=True, x_queue_type="quorum", **own)
        # In RabbitMQ, a policy delays nothing in classic queues.
        channel.declare("classic", durable=True)
    operator("set_policy", "retry", ".*", json.dumps(policy), "--apply-to", "queues")
    if operator_policy:
        operator("set_operator_policy", "retry", ".*", json.dumps(operator_policy), "--apply-to", "queues")
    for name, expected in ((b"plain", plain), (b"declared", declared), (b"classic", ("disabled",))):
        found = timed.virtual_host().queues[name].arguments
        merged = (found.delayed_retry, found.delayed_retry_min, found.delayed_retry_max)
        assert merged[: len(expected)] == expected
    operator("clear_policy", "retry")


def test_a_policy_delays_the_retries_of_a_quorum_queue(timed: InProcessBroker) -> None:
    assert timed.data_dir is not None
    operator = Operator(warren_ctl(timed.data_dir), timed.url, is_warren=True)
    with Connection(timed.url) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True, x_queue_type="quorum")
        operator("set_policy", "retry", "^q$", json.dumps(retry("all", 2000)))
        channel.publish("q", b"x")
        message = channel.get("q")
        assert message is not None
        channel.nack(message.tag)
        timed.advance(1.5)
        assert channel.ready("q") == 0
        timed.advance(1)
        assert channel.ready("q") == 1


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, 10**400], ids=["2**53 + 1", "2**63", "10**400"])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_number_of_a_policy_may_be_as_large_as_any(timed: InProcessBroker, number: int, kind: str) -> None:
    """RabbitMQ takes it, and a queue that the policy matches can be declared."""
    keys = ("expires", "message-ttl", "max-length", "max-length-bytes", "delivery-limit", "consumer-timeout")
    definition = json.dumps(
        {**dict.fromkeys(keys, number), "delayed-retry-type": "all", "delayed-retry-min": number}
    )
    assert timed.data_dir is not None
    Operator(warren_ctl(timed.data_dir), timed.url, is_warren=True)("set_policy", "large", "^q$", definition)
    with Connection(timed.url) as connection:
        channel = connection.channel()
        channel.confirm()
        channel.declare("q", durable=True, x_queue_type=kind)
        channel.publish("q", b"kept", delivery_mode=2)
        assert channel.settled(1) == [True]
        message = channel.get("q")
        assert message is not None
        channel.reject(message.tag, requeue=True)
        timed.advance(365 * 86400)
        assert channel.exists("q")


@pytest.mark.parametrize("how", ENDS)
def test_policies_survive_a_restart(timed: InProcessBroker, how: str) -> None:
    assert timed.data_dir is not None
    operator = Operator(warren_ctl(timed.data_dir), timed.url, is_warren=True)
    with Connection(timed.url) as connection:
        connection.channel().declare("kept", durable=True)
    operator("set_policy", "short", "^kept$", '{"max-length":1}', "--priority", "4", "--apply-to", "queues")
    operator("set_policy", "gone", "^kept$", '{"max-length":9}')
    operator("clear_policy", "gone")
    operator("set_operator_policy", "bound", "^kept$", '{"max-length-bytes":5}')
    timed.restart() if how == "restart" else timed.crash()
    operator = Operator(warren_ctl(timed.data_dir), timed.url, is_warren=True)
    assert operator("list_policies")[1:] == ['/\tshort\t^kept$\tqueues\t{"max-length":1}\t4']
    assert operator("list_operator_policies")[1:] == ['/\tbound\t^kept$\tall\t{"max-length-bytes":5}\t0']
    with Connection(timed.url) as connection:
        channel = connection.channel()
        for body in (b"1", b"2"):
            channel.publish("kept", body)
        assert channel.drain("kept") == [b"2"]
