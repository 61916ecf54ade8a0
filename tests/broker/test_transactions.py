"""Transactions: publishes and acknowledgements take effect at the commit, all of them or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp.commands import Basic, Confirm, Tx

from tests.broker.conftest import Connect
from tests.support.blocking_client import Channel, Connection, Message
from tests.support.broker_process import BrokerProcess
from tests.support.queue_assertions import holds
from tests.support.restarts import RestartableSession


@pytest.fixture
def queue(channel: Channel) -> str:
    return channel.declare(exclusive=True)


@pytest.fixture
def tx(channel: Channel) -> Channel:
    """Return the channel in transaction mode."""
    channel.call(Tx.Select(), Tx.SelectOk)
    return channel


def commit(channel: Channel) -> None:
    channel.call(Tx.Commit(), Tx.CommitOk)


def rollback(channel: Channel) -> None:
    channel.call(Tx.Rollback(), Tx.RollbackOk)


def taken(channel: Channel, queue: str) -> Message:
    message = channel.get(queue)
    assert message is not None
    return message


def test_publishes_are_enqueued_in_order_at_the_commit(tx: Channel, queue: str) -> None:
    for letter in "abc":
        tx.publish(queue, letter)
    assert tx.ready(queue) == 0
    commit(tx)
    assert tx.drain(queue) == [b"a", b"b", b"c"]


def test_a_rollback_discards_the_publishes(tx: Channel, queue: str) -> None:
    tx.publish(queue, "forgotten")
    rollback(tx)
    tx.publish(queue, "kept")
    commit(tx)
    assert tx.drain(queue) == [b"kept"]


def test_acknowledgements_take_effect_at_the_commit(tx: Channel, queue: str) -> None:
    tx.publish(queue, "a")
    commit(tx)
    message = taken(tx, queue)
    tx.ack(message.tag)
    rollback(tx)
    tx.ack(message.tag)
    commit(tx)
    tx.recover()
    assert tx.ready(queue) == 0


def test_an_acknowledgement_without_a_commit_has_no_effect(tx: Channel, queue: str) -> None:
    tx.publish(queue, "a")
    commit(tx)
    tx.ack(taken(tx, queue).tag)
    rollback(tx)
    tx.recover()
    again = taken(tx, queue)
    assert (again.body, again.redelivered) == (b"a", True)


def test_a_channel_that_closes_rolls_back(connect: Connect, tx: Channel, queue: str) -> None:
    tx.publish(queue, "a")
    commit(tx)
    tx.ack(taken(tx, queue).tag)
    tx.publish(queue, "lost")
    other = tx.connection.channel()
    tx.close()
    holds(other, queue, 1)
    assert other.drain(queue) == [b"a"]


@pytest.mark.parametrize(("requeue", "left"), [(True, [b"a", b"b"]), (False, [b"b"])])
def test_rejections_take_effect_at_the_commit(
    tx: Channel, queue: str, requeue: bool, left: list[bytes]
) -> None:
    tx.publish(queue, "a")
    tx.publish(queue, "b")
    commit(tx)
    tx.nack(taken(tx, queue).tag, requeue=requeue)
    assert tx.ready(queue) == 1
    commit(tx)
    assert tx.drain(queue) == left


def test_several_are_acknowledged_at_once(tx: Channel, queue: str) -> None:
    for letter in "abc":
        tx.publish(queue, letter)
    commit(tx)
    for _ in range(3):
        last = taken(tx, queue)
    tx.ack(last.tag, multiple=True)
    rollback(tx)
    tx.ack(last.tag - 1, multiple=True)
    commit(tx)
    tx.recover()
    assert tx.drain(queue) == [b"c"]


def test_an_unroutable_mandatory_message_is_returned_before_commit_ok(tx: Channel, name: str) -> None:
    tx.publish(name, "nobody", mandatory=True)
    tx.send(Tx.Commit())
    returned = tx.next()
    assert isinstance(returned, Message)
    assert isinstance(returned.carrier, Basic.Return)
    assert returned.body == b"nobody"
    assert isinstance(tx.next(), Tx.CommitOk)


def test_a_message_is_routed_when_it_is_published(tx: Channel, queue: str, name: str) -> None:
    exchange = tx.declare_exchange(name)
    tx.publish("", "before", exchange=exchange)
    tx.bind(queue, exchange)
    tx.publish("", "after", exchange=exchange)
    commit(tx)
    assert tx.drain(queue) == [b"after"]
    tx.delete_exchange(exchange)


def test_a_missing_exchange_is_refused_before_the_commit(tx: Channel, name: str) -> None:
    tx.publish("", "x", exchange=name)
    assert tx.closed().code == 404


def test_a_queue_that_refuses_a_publish_fails_the_commit(tx: Channel) -> None:
    queue = tx.declare(exclusive=True, x_max_length=1, x_overflow="reject-publish")
    tx.publish(queue, "a")
    tx.publish(queue, "b")
    tx.send(Tx.Commit())
    assert (error := tx.closed()).code == 406
    assert error.text == "PRECONDITION_FAILED - partial tx completion"


@pytest.mark.parametrize(
    ("before", "method", "text"),
    [
        (None, Tx.Commit(), "channel is not transactional"),
        (None, Tx.Rollback(), "channel is not transactional"),
        ((Confirm.Select(), Confirm.SelectOk), Tx.Select(), "cannot switch from confirm to tx mode"),
        ((Tx.Select(), Tx.SelectOk), Confirm.Select(), "cannot switch from tx to confirm mode"),
    ],
)
def test_modes_do_not_mix(
    channel: Channel,
    before: tuple[Confirm.Select | Tx.Select, type[Confirm.SelectOk] | type[Tx.SelectOk]] | None,
    method: Confirm.Select | Tx.Select | Tx.Commit | Tx.Rollback,
    text: str,
) -> None:
    if before is not None:
        channel.call(*before)
    channel.send(method)
    error = channel.closed()
    assert (error.code, error.text) == (406, f"PRECONDITION_FAILED - {text}")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as process:
        yield process


def test_only_committed_transactions_survive_a_kill(broker: BrokerProcess) -> None:
    connection = Connection(broker.url)
    channel = connection.channel()
    queue, dead = (channel.declare(name, durable=True) for name in ("queue", "dead"))
    channel.publish(queue, "taken", delivery_mode=2)
    channel.call(Tx.Select(), Tx.SelectOk)
    for letter in "abc":
        channel.publish(dead if letter == "b" else queue, letter, delivery_mode=2)
    channel.ack(taken(channel, queue).tag)
    commit(channel)
    channel.publish(queue, "uncommitted", delivery_mode=2)
    assert channel.ready(dead) == 1, "a fence: the publish before it was read"
    broker.kill()
    connection.abort()
    broker.start()
    with Connection(broker.url) as again:
        after = again.channel()
        assert after.drain(queue) == [b"a", b"c"]
        assert after.drain(dead) == [b"b"]


@pytest.mark.parametrize("requeue", [None, True, False])
def test_a_commit_is_answered_when_its_queue_was_deleted(
    session: RestartableSession, requeue: bool | None
) -> None:
    """The commit writes nothing to the disk, so there is nothing to wait for."""
    channel = session.connection.channel()
    queue = channel.declare("gone", durable=True)
    session.publish(queue, b"x")
    channel.call(Tx.Select(), Tx.SelectOk)
    message = taken(channel, queue)
    if requeue is None:
        channel.ack(message.tag)
    else:
        channel.reject(message.tag, requeue=requeue)
    channel.delete(queue)
    commit(channel)
