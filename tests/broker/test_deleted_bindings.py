"""Deletion of queues and exchanges with many bindings: nothing is routed by them from then on, and they go in slices."""

from __future__ import annotations

from pathlib import Path

import pytest
from pamqp.commands import Basic, Exchange

from tests.support.blocking_client import Channel, Connection, Message
from tests.support.bulk_work import Bulk, bulk_of
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from warren.broker.management.items.topology_items import bindings
from warren.broker.model.vhost.binding_removal import BINDINGS

COUNT = 6 * BINDINGS
"""Bindings of one test: as many as six slices remove, if each does as little as it can."""
SLICES = 4


def bind(channel: Channel, queue: str, count: int = COUNT) -> None:
    for number in range(1, count + 1):
        channel.bind(queue, "x", str(number))


def test_the_bindings_of_a_deleted_queue_are_removed_in_slices(timed: Channel, bulk: Bulk) -> None:
    timed.declare_exchange("x", "topic")
    timed.declare("q")
    bind(timed, "q")
    before = bulk.slices()
    timed.delete("q")
    exchange = bulk.vhost.exchanges[b"x"]
    wait_until(lambda: not exchange.bindings and not exchange.deleted_destinations, "the bindings are gone")
    assert bulk.slices() - before >= SLICES
    assert not exchange.topic.root.children


def test_the_bindings_to_a_deleted_exchange_are_removed_in_slices(timed: Channel, bulk: Bulk) -> None:
    timed.declare_exchange("x", "direct")
    timed.declare_exchange("y", "fanout")
    for number in range(COUNT):
        timed.call(Exchange.Bind(source="x", destination="y", routing_key=str(number)), Exchange.BindOk)
    before = bulk.slices()
    timed.delete_exchange("y")
    exchange = bulk.vhost.exchanges[b"x"]
    assert not exchange.has_exchange_bindings
    wait_until(lambda: not exchange.bindings and not exchange.deleted_destinations, "the bindings are gone")
    assert bulk.slices() - before >= SLICES
    assert not exchange.direct


@pytest.mark.parametrize(
    "kind",
    ["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-modulus-hash", "x-random"],
)
def test_nothing_is_routed_to_a_queue_that_is_deleted(timed: Channel, bulk: Bulk, kind: str) -> None:
    timed.declare_exchange("x", kind)
    for queue in ("q", "other"):
        timed.declare(queue)
        bind(timed, queue)
    with bulk.paused():
        timed.delete("q")
        assert bulk.vhost.exchanges[b"x"].deleted_destinations
        for number in range(1, 21):
            timed.publish(str(number), b"%d" % number, exchange="x", mandatory=True)
        assert timed.drain("other") == [b"%d" % number for number in range(1, 21)]
        timed.delete("other")
        timed.publish("1", b"returned", exchange="x", mandatory=True)
        returned = timed.next()
        assert isinstance(returned, Message)
        assert isinstance(returned.carrier, Basic.Return)
    exchange = bulk.vhost.exchanges[b"x"]
    wait_until(lambda: not exchange.bindings and not exchange.deleted_destinations, "the bindings are gone")


def test_a_message_takes_the_alternate_exchange_of_an_exchange_without_other_queues(
    timed: Channel, bulk: Bulk
) -> None:
    timed.declare_exchange("rest")
    timed.bind(timed.declare("alternate"), "rest")
    timed.declare_exchange("x", "topic", alternate_exchange="rest")
    timed.declare("q")
    bind(timed, "q")
    with bulk.paused():
        timed.delete("q")
        timed.publish("1", b"1", exchange="x")
        assert timed.drain("alternate") == [b"1"]


def test_a_new_queue_of_the_same_name_has_its_own_bindings(timed: Channel, bulk: Bulk) -> None:
    timed.declare_exchange("x", "direct")
    timed.declare("q")
    bind(timed, "q")
    with bulk.paused():
        timed.delete("q")
        timed.declare("q")
        timed.bind("q", "x", "1")
        timed.bind("q", "x", "new")
    exchange = bulk.vhost.exchanges[b"x"]
    wait_until(lambda: not exchange.deleted_destinations, "the old bindings are gone")
    assert exchange.binding_count == len(exchange.bindings) == 2
    for key in ("1", "2", "new"):
        timed.publish(key, key, exchange="x")
    assert timed.drain("q") == [b"1", b"new"]
    timed.delete("q")
    assert not exchange.bindings


def test_an_exchange_whose_queue_is_deleted_is_unused(timed: Channel, bulk: Bulk) -> None:
    timed.declare_exchange("x", "direct")
    timed.declare("q")
    bind(timed, "q")
    with bulk.paused():
        timed.delete("q")
        timed.call(Exchange.Delete(exchange="x", if_unused=True), Exchange.DeleteOk)
    assert b"x" not in bulk.vhost.exchanges


def test_no_binding_to_a_deleted_queue_is_listed(timed: Channel, bulk: Bulk) -> None:
    timed.declare_exchange("x", "direct")
    timed.declare("q")
    bind(timed, "q")
    with bulk.paused():
        timed.delete("q")
        assert bulk.broker.call(lambda: list(bindings(bulk.vhost))) == []


def test_auto_delete_exchanges_go_with_their_last_queue_in_one_change(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        bulk = bulk_of(broker)
        definitions = bulk.node.definitions
        assert definitions is not None
        with Connection(broker.url) as connection:
            channel = connection.channel()
            # x is bound to y, and y to the queue: both go with it; z has another binding, and stays.
            for exchange in ("x", "y", "z"):
                channel.declare_exchange(exchange, "direct", durable=True, auto_delete=True)
            for queue in ("q", "other"):
                channel.declare(queue, durable=True)
            channel.call(Exchange.Bind(source="x", destination="y", routing_key=""), Exchange.BindOk)
            channel.bind("q", "y")
            bind_all = [("q", "1"), ("q", "2"), ("other", "1")]
            for queue, key in bind_all:
                channel.bind(queue, "z", key)
            before = broker.call(lambda: definitions.submitted)
            with bulk.paused():
                channel.delete("q")
                names = set(bulk.vhost.exchanges)
                assert names >= {b"z"}
                assert not names & {b"x", b"y"}
            # A crash leaves all of it or none.
            assert broker.call(lambda: definitions.submitted) - before == 1
        broker.restart()
        vhost = broker.virtual_host()
        assert not {b"x", b"y"} & set(vhost.exchanges)
        assert [bound.destination.name for bound in vhost.exchanges[b"z"].live_bindings()] == [b"other"]
