"""Portability checks: `strict` refuses what RabbitMQ 4.3 refuses; otherwise each feature works and is logged once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pamqp import base, commands

from tests.support.in_process_broker import InProcessBroker
from tests.support.raw_client import RawClient, made
from warren.broker import BrokerConfig
from warren.broker.model.compat_checks import PORTABILITY_RULES
from warren.wire.reply_codes import Reply, reply_text


def queue(**arguments: object) -> base.Frame:
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return made(commands.Queue.Declare, queue="q", durable=True, arguments=table)


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
}
"""Requests of a client, and the words that their refusal contains; `small_frames` belongs to the handshake."""


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
    # Policies are an operator's: see tests/broker/management/test_policies.py.
    assert {*ASKED, "small_frames", "mirror_policy", "limit_policy"} == set(PORTABILITY_RULES)


@pytest.mark.parametrize(
    "name", [name for name, row in PORTABILITY_RULES.items() if name in ASKED and row.code]
)
def test_strict_refuses_what_rabbitmq_refuses(name: str) -> None:
    command, about = ASKED[name]
    row = PORTABILITY_RULES[name]
    assert row.code is not None
    with broker(strict=True) as running, RawClient(running.url) as peer:
        refusal = peer.connect().open().refused(command)
        assert (refusal.code, refusal.text) == (row.code, reply_text(row.code, row.text.format(*about)))
        assert refusal.scope == ("channel" if row.code is Reply.PRECONDITION_FAILED else "connection")


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


def test_strict_refuses_small_frames(caplog: pytest.LogCaptureFixture) -> None:
    tuned: Callable[[RawClient], None] = lambda peer: peer.tune(frame_max=4096)  # noqa: E731
    with broker(strict=True) as running, RawClient(running.url) as peer:
        peer.log_in()
        tuned(peer)
        assert peer.refusal(0)[:3] == (
            "connection",
            530,
            "NOT_ALLOWED - negotiated frame_max = 4096 is lower than the minimum allowed value (8192)",
        )
    with broker(strict=False) as running, RawClient(running.url) as peer:
        peer.connect(frame_max=4096).open()
    assert len(warnings(caplog)) == 2  # one a broker


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
