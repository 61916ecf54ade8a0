"""Portability checks: `strict` refuses what RabbitMQ 4.3 refuses; otherwise each feature works and is logged once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pamqp import base, commands

from tests.support.broker_behaviour import Behaviour
from tests.support.in_process_broker import InProcessBroker
from tests.support.raw_client import RawClient, made
from warren.broker import BrokerConfig
from warren.broker.model.compat_checks import PORTABILITY_RULES
from warren.wire.reply_codes import Reply, reply_text


def queue(**arguments: object) -> base.Frame:
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return made(commands.Queue.Declare, queue="q", durable=True, arguments=table)


def exchange(kind: str) -> base.Frame:
    return made(commands.Exchange.Declare, exchange="x", exchange_type=kind)


ASKED: dict[str, tuple[base.Frame, tuple[object, ...]]] = {
    "transient_queue": (made(commands.Queue.Declare, queue="q"), ()),
    "global_qos": (commands.Basic.Qos(prefetch_count=1, global_=True), ()),
    "master_locator": (queue(queue_master_locator="min-masters"), ()),
    "quorum_argument": (queue(delivery_limit=3), ("x-delivery-limit", "queue 'q' in vhost '/'")),
    "queue_mode": (queue(queue_mode="lazy"), ()),
    "mirrors": (queue(ha_policy="all"), ()),
    "deduplication": (queue(message_deduplication=True), ()),
    "plugin_exchange": (
        made(
            commands.Exchange.Declare,
            exchange="x",
            exchange_type="x-delayed-message",
            arguments={"x-delayed-type": "direct"},
        ),
        ("x-delayed-message",),
    ),
    "consistent_hash_exchange": (exchange("x-consistent-hash"), ("x-consistent-hash",)),
    "random_exchange": (exchange("x-random"), ("x-random",)),
    "recent_history_exchange": (exchange("x-recent-history"), ("x-recent-history",)),
}
"""Requests of a client, and the words that their refusal contains; `small_frames` belongs to the handshake."""


@pytest.fixture
def strict_url(amqp_url: str, server: Behaviour) -> Iterator[str]:
    """Return the URL of RabbitMQ 4.3, if that is the broker under test, and else of a broker with strict checks."""
    if server.is_4_3 and not server.is_warren:
        yield amqp_url
        return
    with broker(strict=True) as running:
        yield running.url


@contextmanager
def broker(*, strict: bool) -> Iterator[InProcessBroker]:
    with InProcessBroker(config=BrokerConfig(strict=strict)) as running:
        yield running


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("event=portability.feature_used")
    ]


def test_every_rule_has_a_test() -> None:
    # Policies are an operator's, and both brokers are asked: see tests/broker/management/test_policies.py.
    # Extensions of Warren's have tests of their own: there is nothing to compare.
    others = {"small_frames", "conditional_delete", "mirror_policy", "limit_policy"}
    others |= {name for name, row in PORTABILITY_RULES.items() if row.is_extension}
    assert {*ASKED, *others} == set(PORTABILITY_RULES)


@pytest.mark.parametrize(
    "name", [name for name, row in PORTABILITY_RULES.items() if name in ASKED and row.code]
)
def test_strict_refuses_what_rabbitmq_refuses(name: str, strict_url: str) -> None:
    command, about = ASKED[name]
    row = PORTABILITY_RULES[name]
    assert row.code is not None
    with RawClient(strict_url) as peer:
        refusal = peer.connect().open().refused(command)
        assert (refusal.code, refusal.text) == (row.code, reply_text(row.code, row.text.format(*about)))
        assert refusal.scope == ("channel" if row.code is Reply.PRECONDITION_FAILED else "connection")


@pytest.mark.parametrize("name", [name for name in ASKED if not PORTABILITY_RULES[name].code])
def test_strict_takes_what_rabbitmq_takes(name: str, strict_url: str) -> None:
    command, _ = ASKED[name]
    with RawClient(strict_url) as peer:
        peer.connect().open().send(command)
        assert not isinstance(peer.read_method()[1], commands.Channel.Close | commands.Connection.Close)
        peer.delete_queue("q")


@pytest.mark.parametrize("kind", ["x-modulus-hash", "x-local-random"])
def test_strict_takes_exchange_types_that_need_no_plugin(kind: str, strict_url: str) -> None:
    with RawClient(strict_url) as peer:
        peer.connect().open().call(exchange(kind), 1, commands.Exchange.DeclareOk)
        peer.call(made(commands.Exchange.Delete, exchange="x"), 1, commands.Exchange.DeleteOk)


@pytest.mark.parametrize(
    "arguments",
    [
        {"delayed_retry_type": "foo", "delayed_retry_min": 1000},
        {"delayed_retry_type": 5},
        {"delayed_retry_type": "all", "delayed_retry_min": 5000, "delayed_retry_max": 1000},
        {"delayed_retry_type": "all", "delayed_retry_min": -1},
        {"delayed_retry_type": "all", "delayed_retry_min": 1000, "delayed_retry_max": "x"},
    ],
    ids=["type", "no-string", "max-below-min", "min", "max"],
)
def test_strict_takes_any_delayed_retries(arguments: dict[str, object], strict_url: str) -> None:
    command = queue(queue_type="quorum", **arguments)
    with RawClient(strict_url) as peer:
        peer.connect().open().call(command, 1, commands.Queue.DeclareOk)
        peer.delete_queue("q")
    with broker(strict=False) as running, RawClient(running.url) as peer:
        assert peer.connect().open().refused(command).code == 406


def test_a_queue_with_any_delayed_retries_outlives_a_restart_without_strict(tmp_path: Path) -> None:
    config = BrokerConfig(strict=True)
    with InProcessBroker(tmp_path / "data", config=config) as running:
        with RawClient(running.url) as peer:
            command = queue(queue_type="quorum", delayed_retry_type="foo", delayed_retry_min=1000)
            peer.connect().open().call(command, 1, commands.Queue.DeclareOk)
        running.stop()
        running.config = BrokerConfig()
        running.start()
        with RawClient(running.url) as peer:
            assert peer.connect().open().declare_queue("q", passive=True)[0] == "q"


@pytest.mark.parametrize(
    ("name", "strict"),
    [
        (name, strict)
        for name in ASKED
        for strict in (False, True)
        if not strict or not PORTABILITY_RULES[name].code
    ],
)
def test_without_strict_a_feature_works_and_is_logged_once(
    name: str, strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    command, _ = ASKED[name]
    with broker(strict=strict) as running, RawClient(running.url) as peer:
        peer.connect().open()
        for _ in range(2):
            peer.send(command)
            assert not isinstance(peer.read_method()[1], commands.Channel.Close | commands.Connection.Close)
    assert len(warnings(caplog)) == 1
    assert PORTABILITY_RULES[name].advice in warnings(caplog)[0]


def test_strict_refuses_small_frames(strict_url: str, amqp_url: str) -> None:
    with RawClient(strict_url) as peer:
        peer.log_in()
        peer.tune(frame_max=4096)
        if strict_url == amqp_url:
            assert peer.at_end()  # RabbitMQ writes the reason to its log.
            return
        assert peer.refusal(0)[:3] == (
            "connection",
            530,
            "NOT_ALLOWED - negotiated frame_max = 4096 is lower than the minimum allowed value (8192)",
        )


@pytest.mark.parametrize("strict", [False, True])
def test_small_frames_are_logged(strict: bool, caplog: pytest.LogCaptureFixture) -> None:
    with broker(strict=strict) as running, RawClient(running.url) as peer:
        if strict:
            peer.log_in()
            peer.tune(frame_max=4096)
            assert peer.refusal(0).code == 530
        else:
            peer.connect(frame_max=4096).open()
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("flag", ["if_unused", "if_empty"])
def test_strict_refuses_to_delete_a_quorum_queue_on_a_condition(flag: str, strict_url: str) -> None:
    delete = made(commands.Queue.Delete, queue="q", **{flag: True})
    with RawClient(strict_url) as peer:
        peer.connect().open().call(queue(queue_type="quorum"), 1, commands.Queue.DeclareOk)
        assert peer.refused(delete)[:3] == (
            "connection",
            540,
            f"NOT_IMPLEMENTED - cannot delete queue 'q' in vhost '/'. queue.delete operations with "
            f"{flag.replace('_', '-')} flag set are not supported by quorum queues",
        )
    with RawClient(strict_url) as peer:
        peer.connect().open().delete_queue("q")
    with broker(strict=False) as running, RawClient(running.url) as peer:
        peer.connect().open().call(queue(queue_type="quorum"), 1, commands.Queue.DeclareOk)
        peer.call(delete, 1, commands.Queue.DeleteOk)


def test_strict_applies_a_global_prefetch_to_each_consumer() -> None:
    with broker(strict=True) as running, RawClient(running.url) as peer:
        peer.connect().open().declare("q", exclusive=True)
        peer.call(commands.Basic.Qos(prefetch_count=1, global_=True), 1, commands.Basic.QosOk)
        for tag in ("a", "b"):
            consume = made(commands.Basic.Consume, queue="q", consumer_tag=tag)
            peer.call(consume, 1, commands.Basic.ConsumeOk)
        for body in (b"1", b"2", b"3"):
            peer.publish("", "q", body)
        given = [peer.receive_message(commands.Basic.Deliver).body for _ in range(2)]
        assert given == [b"1", b"2"]
        assert peer.purge("q") == 1


def test_portable_operations_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with broker(strict=True) as running, RawClient(running.url) as peer:
        peer.connect().open()
        for command, answer in (
            (queue(), commands.Queue.DeclareOk),
            (made(commands.Queue.Declare, queue="e", exclusive=True), commands.Queue.DeclareOk),
            (commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk),
            (
                made(commands.Exchange.Declare, exchange="x", exchange_type="topic"),
                commands.Exchange.DeclareOk,
            ),
        ):
            peer.call(command, 1, answer)
    assert not warnings(caplog)
