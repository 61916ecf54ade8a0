"""Paging: waiting messages leave memory and are delivered unchanged and in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.blocking_client import Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.polling import wait_until
from warren.broker import BrokerConfig
from warren.broker.model.memory_budget import CHUNK, RESTING_AFTER, SLICE, MemoryBudget
from warren.broker.model.queue.queue import Queue

COUNT = 4000
BODY = b"x" * 5000
LITTLE = 16 * 1024 * 1024
"""The least that a broker may have: half of it is for messages, of which there are 20 MB here."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path / "data", config=BrokerConfig(memory_limit=LITTLE)) as running:
        yield running


def the_queue(broker: InProcessBroker, name: str) -> Queue:
    assert broker.broker is not None
    return broker.broker.virtual_hosts.declarations_of("/").vhost.queues[name.encode()]


def in_memory(broker: InProcessBroker, name: str) -> int:
    return broker.call(lambda: the_queue(broker, name).ready.resident_totals()[1])


def until_paged(broker: InProcessBroker, name: str) -> None:
    wait_until(lambda: in_memory(broker, name) < LITTLE // 2, "half of the memory")


def number(body: bytes) -> int:
    return int(body.partition(b":")[0])


def fill(
    connection: Connection, name: str, *, persistent: bool, count: int = COUNT, **arguments: Any
) -> None:
    channel = connection.channel()
    channel.declare(name, durable=persistent, **arguments)
    channel.confirm()
    for each in range(count):
        channel.publish(name, b"%d:" % each + BODY, delivery_mode=2 if persistent else 1, priority=each % 3)
    assert all(channel.settled(count))
    channel.close()


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "transient"])
def test_messages_over_the_budget_are_paged_out_and_delivered_in_order(
    broker: InProcessBroker, persistent: bool
) -> None:
    with Connection(broker.url) as connection:
        fill(connection, "long", persistent=persistent)
        until_paged(broker, "long")
        channel = connection.channel()
        channel.consume("long", no_ack=True)
        assert [number(each.body) for each in channel.deliveries(COUNT)] == list(range(COUNT))


def test_a_lazy_queue_keeps_no_messages_in_memory(broker: InProcessBroker) -> None:
    with Connection(broker.url) as connection:
        fill(connection, "lazy", persistent=False, count=500, x_queue_mode="lazy")
        wait_until(lambda: in_memory(broker, "lazy") == 0, "nothing in memory")
        channel = connection.channel()
        message = channel.get("lazy", no_ack=True)
        assert message is not None
        assert number(message.body) == 0
        channel.consume("lazy", no_ack=True)
        assert [number(each.body) for each in channel.deliveries(499)] == list(range(1, 500))


def test_paged_out_messages_are_delivered_by_priority(broker: InProcessBroker) -> None:
    with Connection(broker.url) as connection:
        fill(connection, "ranked", persistent=True, x_max_priority=2)
        until_paged(broker, "ranked")
        channel = connection.channel()
        channel.consume("ranked", no_ack=True)
        expected = sorted(range(COUNT), key=lambda each: (-(each % 3), each))
        assert [number(each.body) for each in channel.deliveries(COUNT)] == expected


def test_unacknowledged_messages_are_paged_out_and_requeued_completely(broker: InProcessBroker) -> None:
    with Connection(broker.url) as connection:
        fill(connection, "held", persistent=True)
        with Connection(broker.url) as other:
            consumer = other.channel()
            consumer.consume("held")
            assert len(consumer.deliveries(COUNT)) == COUNT

            def absent() -> int:
                held = the_queue(broker, "held")
                return sum(
                    1
                    for consumer in held.consumers
                    for message in consumer.unacknowledged().values()
                    if not message.content
                )

            wait_until(lambda: broker.call(absent) > 0, "contents that left memory")
        channel = connection.channel()
        channel.consume("held", no_ack=True)
        back = channel.deliveries(COUNT)
        assert [number(each.body) for each in back] == list(range(COUNT))
        assert all(each.redelivered for each in back)
        assert all(each.body.endswith(BODY) for each in back)


def test_a_purge_removes_paged_out_messages(broker: InProcessBroker) -> None:
    with Connection(broker.url) as connection:
        fill(connection, "purged", persistent=True, x_max_priority=2)
        until_paged(broker, "purged")
        channel = connection.channel()
        assert channel.purge("purged") == COUNT
        channel.close()
        fill(connection, "purged", persistent=True, count=2, x_max_priority=2)
    broker.restart()
    with Connection(broker.url) as connection:
        channel = connection.channel()
        assert channel.ready("purged") == 2


def test_a_backlog_is_not_read_into_memory_at_a_start(broker: InProcessBroker) -> None:
    with Connection(broker.url) as connection:
        fill(connection, "kept", persistent=True)
    broker.restart()
    assert in_memory(broker, "kept") < LITTLE // 2
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.consume("kept", no_ack=True)
        back = channel.deliveries(COUNT)
        assert [number(each.body) for each in back] == list(range(COUNT))
        assert not any(each.redelivered for each in back)


@pytest.fixture
def filled(broker: InProcessBroker) -> Path:
    """Return the data folder of a stopped broker whose queue `kept` has messages in indexed segments."""
    with Connection(broker.url) as connection:
        fill(connection, "kept", persistent=True)
    broker.restart()
    broker.stop()
    assert broker.data_dir is not None
    folder = broker.data_dir / "log"
    assert len(list(folder.glob("*.idx"))) >= 2
    return folder


def drained(broker: InProcessBroker, count: int) -> list[int]:
    broker.start()
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.consume("kept", no_ack=True)
        return [number(each.body) for each in channel.deliveries(count)]


def test_a_damaged_record_costs_one_message(
    broker: InProcessBroker, filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    segment = min(filled.glob("*.log"))
    data = bytearray(segment.read_bytes())
    place = data.index(b"1234:" + BODY[:100])
    data[place + 50] ^= 1
    segment.write_bytes(data)
    assert drained(broker, COUNT - 1) == [each for each in range(COUNT) if each != 1234]
    with Connection(broker.url) as connection:
        assert connection.channel().ready("kept") == 0
    assert "event=queue.message_lost queue='kept' sequence=1235" in caplog.text


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", ["missing", "cut", "header", "entries"])
def test_a_damaged_index_costs_nothing(broker: InProcessBroker, filled: Path, how: str) -> None:
    for index in filled.glob("*.idx"):
        data = bytearray(index.read_bytes())
        if how == "missing":
            index.unlink()
        elif how == "cut":
            index.write_bytes(data[:-100])
        else:
            data[20 if how == "header" else -1000] ^= 1
            index.write_bytes(data)
    assert drained(broker, COUNT) == list(range(COUNT))


def test_messages_lost_while_the_broker_runs_count_no_more(
    broker: InProcessBroker, filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A segment whose messages take no memory is zeroed, with its index: the rest is delivered, and the counts are right."""
    broker.start()
    segment = sorted(filled.glob("*.log"))[1]
    for file in (segment, segment.with_suffix(".idx")):
        file.write_bytes(bytes(file.stat().st_size))
    with Connection(broker.url) as connection:
        channel = connection.channel()
        count = 0
        while channel.get("kept", no_ack=True) is not None:
            count += 1
    assert 0 < count < COUNT
    assert f"event=queue.messages_lost queue='kept' count={COUNT - count}" in caplog.text
    columns = ("messages", "message_bytes", "messages_persistent", "message_bytes_persistent")
    operator = Operator(warren_ctl(filled.parent), broker.url, is_warren=True)
    assert operator.queue("kept", *columns) == {"name": "kept", **dict.fromkeys(columns, 0)}


def test_a_missing_segment_costs_its_messages_only(broker: InProcessBroker, filled: Path) -> None:
    lost = min(filled.glob("*.log"))
    lost.unlink()
    broker.start()
    with Connection(broker.url) as connection:
        channel = connection.channel()
        left = channel.ready("kept")
        assert 0 < left < COUNT
        channel.consume("kept", no_ack=True)
        assert [number(each.body) for each in channel.deliveries(left)] == list(range(COUNT - left, COUNT))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
def test_delayed_messages_are_paged_out(broker: InProcessBroker, durable: bool) -> None:
    """Delay more messages than memory may hold: they arrive in the order of their due times, also after a restart."""

    def resident() -> int:
        assert broker.broker is not None
        vhost = broker.broker.virtual_hosts.declarations_of("/").vhost
        return broker.call(lambda: vhost.internal_queues[b"amq.delayed.later"].ready.resident_totals()[1])

    count = 3000
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True)
        channel.declare_exchange("later", "x-delayed-message", durable=durable, x_delayed_type="fanout")
        channel.bind("q", "later")
        channel.confirm()
        for each in range(count):
            delay = 1000 + (each * 7919) % count
            headers = {"x-delay": delay}
            body = b"%d:" % delay + BODY
            channel.publish("", body, exchange="later", headers=headers, delivery_mode=2 if durable else 1)
        assert all(channel.settled(count))
        wait_until(lambda: resident() < LITTLE // 2, "half of the memory")
    if durable:
        broker.crash()
    with Connection(broker.url) as connection:
        channel = connection.channel()
        broker.advance(0.999)
        assert channel.ready("q") == 0
        broker.advance(10)
        channel.consume("q", no_ack=True)
        assert [number(each.body) for each in channel.deliveries(count)] == list(range(1000, 1000 + count))


@pytest.mark.parametrize("lazy", [False, True], ids=["over the budget", "lazy"])
def test_the_budget_of_many_queues_is_checked_in_slices(broker: InProcessBroker, lazy: bool) -> None:
    assert broker.broker is not None
    budget = broker.broker.virtual_hosts.declarations_of("/").vhost.memory_budget
    assert budget is not None

    def check_in_slices() -> None:
        budget.many_queues = 0
        budget.slice_seconds = 0.0

    broker.call(check_in_slices)
    names = [f"one-of-{each}" for each in range(4)]
    arguments = {"x_queue_mode": "lazy"} if lazy else {}
    with Connection(broker.url) as connection:
        for name in names:
            fill(connection, name, persistent=False, count=COUNT // 4, **arguments)
        connection.channel().declare("empty")
        kept = 0 if lazy else LITTLE // 2
        wait_until(lambda: sum(in_memory(broker, name) for name in names) <= kept, "paged out")
        if not lazy:  # lazy queues write their messages at the publish, without paging
            assert broker.call(lambda: int(budget.paged_out)) >= COUNT // 4
        channel = connection.channel()
        channel.delete(names.pop())
        for name in names:
            assert [number(body) for body in channel.drain(name)] == list(range(COUNT // 4))
        wait_until(lambda: broker.call(lambda: not budget.rates), "emptied queues are forgotten")


def budget_of(broker: InProcessBroker) -> MemoryBudget:
    """Return the memory budget of a broker; it checks nothing by itself any more."""
    assert broker.broker is not None
    budget = broker.broker.virtual_hosts.declarations_of("/").vhost.memory_budget
    assert budget is not None
    broker.call(budget.stop)
    return budget


def fill_many(broker: InProcessBroker, budget: MemoryBudget, count: int) -> None:
    """Put messages that exceed the budget into queues that hold fewer than are paged out at once."""
    each = SLICE // 2
    with Connection(broker.url) as connection:
        for at in range(count):
            fill(connection, f"one-of-{at}", persistent=False, count=each)
        # Publishing has scheduled a check.
        broker.call(budget.stop)


def run_out_of_memory(budget: MemoryBudget) -> None:
    budget.budget, budget.slice_seconds = 1, 0.0


@pytest.mark.parametrize("kind", ["few", "many"])
def test_no_slice_pages_out_the_messages_of_several_queues(tmp_path: Path, kind: str) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        budget = budget_of(broker)
        fill_many(broker, budget, 4)

        def page() -> list[int]:
            """Return how many messages each slice has paged out."""
            run_out_of_memory(budget)
            paged: list[int] = []
            before = int(budget.paged_out)
            if kind == "many":
                for _ in budget.check_many():
                    paged.append(int(budget.paged_out) - before)
                    before = int(budget.paged_out)
            else:
                budget.page()
                while budget.next_slice is not None:
                    budget.next_slice.cancel()
                    paged.append(int(budget.paged_out) - before)
                    before = int(budget.paged_out)
                    budget.page()
            return [each for each in paged if each]

        paged = broker.call(page)
        assert len(paged) >= 4
        assert max(paged) <= SLICE // 2


def test_slow_queues_of_many_are_paged_out_first(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        budget = budget_of(broker)
        fill_many(broker, budget, 4)

        def order() -> list[bytes]:
            run_out_of_memory(budget)
            for at, rate in enumerate(budget.rates.values()):
                rate.rate = 1e9 / (at + 1)
            paged: list[bytes] = []
            for _ in budget.check_many():
                for rate in budget.rates.values():
                    if rate.queue.ready.paging_out and rate.queue.name not in paged:
                        paged.append(rate.queue.name)
            return paged

        assert broker.call(order) == [b"one-of-3", b"one-of-2", b"one-of-1", b"one-of-0"]


def test_queues_are_searched_for_unacknowledged_messages_in_slices(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        budget = budget_of(broker)
        with Connection(broker.url) as connection:
            channel = connection.channel()
            for at in range(3 * CHUNK):
                channel.declare(f"q{at}")

        def slices() -> int:
            budget.slice_seconds = 0.0
            budget.check_unacknowledged()
            count = 1
            while budget.unacked_slice is not None:
                budget.unacked_slice.cancel()
                budget.continue_unacknowledged()
                count += 1
            assert budget.unacked_timer is not None
            return count

        assert broker.call(slices) > 3


def test_a_queue_that_gets_messages_during_a_check_begins_no_second_one(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        budget = budget_of(broker)
        with Connection(broker.url) as connection:
            channel = connection.channel()
            channel.confirm()
            for at in range(2 * CHUNK):
                channel.publish(channel.declare(f"q{at}"))
            channel.declare("other")
            assert all(channel.settled(2 * CHUNK))
        broker.call(budget.stop)

        def find_timers() -> list[bool]:
            """Return whether the next check is scheduled: in each slice of one, and after it."""
            budget.many_queues, budget.slice_seconds = 0, 0.0
            budget.tick()
            found = []
            while budget.next_slice is not None:
                budget.next_slice.cancel()
                budget.track(the_queue(broker, "other"))
                found.append(budget.timer is not None)
                budget.continue_check()
            return [*found, budget.timer is not None]

        *during, after = broker.call(find_timers)
        assert during
        assert (any(during), after) == (False, True)


def check_often(budget: MemoryBudget) -> None:
    """Check the budget so often that a queue in which nothing changes rests."""
    for _ in range(RESTING_AFTER + 1):
        check_once(budget)
    # As if a check were due, so that a message that arrives begins none.
    budget.timer = budget.loop.call_later(86400, budget.stop)


def check_once(budget: MemoryBudget) -> None:
    budget.tick()
    while budget.next_slice is not None:
        budget.next_slice.cancel()
        budget.continue_check() if budget.check is not None else budget.page()
    budget.stop()


@pytest.fixture(params=["few", "many"])
def rested(broker: InProcessBroker, request: pytest.FixtureRequest) -> MemoryBudget:
    """Return the budget of a broker with queues that rest: `one-of-0` to `one-of-3` with 20 messages each."""
    budget = budget_of(broker)
    if request.param == "many":
        budget.many_queues, budget.slice_seconds = 0, 0.0
    with Connection(broker.url) as connection:
        for at in range(4):
            fill(connection, f"one-of-{at}", persistent=True, count=20)
    broker.call(lambda: check_often(budget))
    assert not budget.rates
    assert len(budget.resting) == 4
    assert budget.memory_bytes() > 4 * 20 * len(BODY)
    return budget


def test_a_queue_that_rests_is_checked_again_when_a_message_arrives(
    broker: InProcessBroker, rested: MemoryBudget
) -> None:
    before = broker.call(lambda: int(rested.memory_bytes()))
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.confirm()
        channel.publish("one-of-2", BODY, delivery_mode=2)
        assert channel.settled(1) == [True]
    assert [queue.name for queue in rested.rates] == [b"one-of-2"]
    assert len(rested.resting) == 3
    assert broker.call(lambda: int(rested.memory_bytes())) >= before + len(BODY)
    broker.call(lambda: check_often(rested))
    assert not rested.rates


@pytest.mark.parametrize("how", ["consumed", "purged", "deleted"])
def test_a_queue_that_rests_and_becomes_empty_is_forgotten(
    broker: InProcessBroker, rested: MemoryBudget, how: str
) -> None:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        for at in range(4):
            match how:
                case "consumed":
                    assert len(channel.drain(f"one-of-{at}")) == 20
                case "purged":
                    channel.purge(f"one-of-{at}")
                case _:
                    channel.delete(f"one-of-{at}")
                    assert len(rested.resting) == 3 - at
    broker.call(lambda: check_often(rested))
    assert not rested.resting
    assert broker.call(lambda: int(rested.memory_bytes())) == 0


def test_a_deleted_queue_is_forgotten_at_once(broker: InProcessBroker, rested: MemoryBudget) -> None:
    """Otherwise the queue, and a closed connection that owned it, take memory until the next check."""
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.confirm()
        channel.publish("one-of-2", BODY, delivery_mode=2)
        assert channel.settled(1) == [True]
        # No check happens meanwhile.
        broker.call(rested.stop)
        assert [queue.name for queue in rested.rates] == [b"one-of-2"]
        channel.delete("one-of-2")
        assert not rested.rates


def test_queues_that_rest_are_paged_out_when_memory_is_short(
    broker: InProcessBroker, rested: MemoryBudget
) -> None:
    rested.budget = 1
    broker.call(lambda: check_often(rested))
    assert not rested.resting
    assert sum(in_memory(broker, f"one-of-{at}") for at in range(4)) == 0


def test_a_queue_that_rests_pages_out_when_a_policy_makes_it_lazy(
    broker: InProcessBroker, rested: MemoryBudget
) -> None:
    assert broker.data_dir is not None
    operator = Operator(warren_ctl(broker.data_dir), broker.url, is_warren=True)
    operator("set_policy", "lazy", "^one-of-1$", '{"queue-mode":"lazy"}')
    wait_until(lambda: [queue.name for queue in rested.rates] == [b"one-of-1"], "the policy applies")
    broker.call(lambda: check_often(rested))
    assert [in_memory(broker, f"one-of-{at}") > 0 for at in range(4)] == [True, False, True, True]
