"""Message counts and sizes in list_queues, after random operations on a queue."""

from __future__ import annotations

import bisect
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import commands

from tests.support.blocking_client import Channel, Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.tiers import examples

# Some hundred syncs, one after the other.
pytestmark = pytest.mark.timeout(1200)

PERSISTENT = 2
FIGURES = (
    "messages_ready",
    "messages_unacknowledged",
    "messages",
    "messages_persistent",
    "message_bytes",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
    "message_bytes_persistent",
)
IN_MEMORY = ("messages_ready_ram", "messages_unacknowledged_ram", "messages_ram", "message_bytes_ram")


@dataclass
class Expected:
    """Model of the queue: lists of message numbers, sizes and persistence."""

    durable: bool
    ready: list[tuple[int, int, bool]] = field(default_factory=list)
    """Ready messages: number, size in bytes, persistent."""
    unacked: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    """Unacknowledged messages by delivery tag."""

    def figures(self) -> dict[str, int]:
        held = list(self.unacked.values())
        both = self.ready + held
        kept = [size for _, size, persistent in both if persistent and self.durable]
        return {
            "messages_ready": len(self.ready),
            "messages_unacknowledged": len(held),
            "messages": len(both),
            "messages_persistent": len(kept),
            "message_bytes": sum(size for _, size, _ in both),
            "message_bytes_ready": sum(size for _, size, _ in self.ready),
            "message_bytes_unacknowledged": sum(size for _, size, _ in held),
            "message_bytes_persistent": sum(kept),
        }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path_factory.mktemp("figures") / "data") as broker:
        yield broker


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 300), st.booleans()),
        st.tuples(st.sampled_from(["get", "ack", "requeue", "reject", "purge", "lazy", "default", "tx"])),
    ),
    min_size=1,
    max_size=25,
)


@settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS, durable=st.booleans(), priorities=st.booleans())
def test_list_queues_counts_match_the_model(
    broker: InProcessBroker, steps: list[tuple[object, ...]], durable: bool, priorities: bool
) -> None:
    assert broker.data_dir is not None
    operator = Operator(warren_ctl(broker.data_dir), broker.url, is_warren=True)
    name = f"queue-{uuid.uuid4().hex}"
    with Connection(broker.url) as connection:
        channel = connection.channel()
        if priorities:
            channel.declare(name, durable=durable, x_max_priority=3)
        else:
            channel.declare(name, durable=durable)
        channel.confirm()
        expected = Expected(durable)
        published = 0

        def check() -> None:
            row = operator.queue(name, *FIGURES, *IN_MEMORY)
            assert {figure: row[figure] for figure in FIGURES} == expected.figures()
            assert 0 <= row["messages_ready_ram"] <= row["messages_ready"]
            assert 0 <= row["messages_unacknowledged_ram"] <= row["messages_unacknowledged"]
            assert 0 <= row["message_bytes_ram"] <= row["message_bytes"]

        for step in steps:
            if step[0] == "publish":
                _, size, persistent = step
                assert isinstance(size, int)
                mode = PERSISTENT if persistent else 1
                channel.publish(name, b"x" * size, delivery_mode=mode)
                published += 1
                channel.settled_until(published)
                expected.ready.append((published, size, bool(persistent)))
            elif step[0] in ("lazy", "default"):
                operator("set_policy", name, f"^{name}$", f'{{"queue-mode":"{step[0]}"}}')
            else:
                settle(channel, name, expected, str(step[0]), check)
            check()
        operator("delete_queue", name)
        operator.run("clear_policy", name)


def settle(channel: Channel, name: str, expected: Expected, how: str, check: Callable[[], None]) -> None:
    """Settle the oldest unacknowledged message, in the queue and in the model."""
    if how == "get":
        message = channel.get(name)
        assert (message is None) == (not expected.ready)
        if message is not None:
            expected.unacked[message.tag] = expected.ready.pop(0)
    elif how == "purge":
        channel.purge(name)
        expected.ready.clear()
    elif how == "tx":
        # An acknowledgement in an uncommitted transaction: the queue still counts the message.
        other = channel.connection.channel()
        other.call(commands.Tx.Select(), commands.Tx.SelectOk)
        message = other.get(name)
        if message is not None:
            other.ack(message.tag)
            other.ready(name)
            expected.unacked[-1] = expected.ready.pop(0)
            check()
            bisect.insort(expected.ready, expected.unacked.pop(-1))
        other.call(commands.Tx.Rollback(), commands.Tx.RollbackOk)
        other.close()
    elif expected.unacked:
        tag = next(iter(expected.unacked))
        found = expected.unacked.pop(tag)
        if how == "ack":
            channel.ack(tag)
        else:
            channel.nack(tag, requeue=how == "requeue")
        if how == "requeue":
            bisect.insort(expected.ready, found)
        channel.ready(name)
