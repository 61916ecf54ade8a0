"""Model-based test of the backing queue: the same messages in the same order as a plain list, in memory or on disk.

The invariants of the five parts hold after each step. A step may also be compaction, a mode change, a crash or a power cut.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.tiers import examples
from tests.unit.store.log_run import LogRun
from tests.unit.store.simulated_disk import Disk
from warren.broker.http_api.messages.queue_browser import BEFORE_ALL, position_of, ready_after
from warren.broker.model.compat_checks import PortabilityChecks
from warren.broker.model.message import Message
from warren.broker.model.message_codec import apply_mark, describe_payload, fill_message, message_head
from warren.broker.model.queue.backing_queue import BackingQueue
from warren.broker.model.queue.message_recovery import restore_messages
from warren.broker.model.queue.paging import QueuePager
from warren.broker.model.queue.priority_backing_queue import PriorityBackingQueue
from warren.broker.model.queue.queue import Queue
from warren.broker.model.queue.queue_arguments import QueueArguments
from warren.broker.model.rabbitmq_versions import BEHAVIOUR_BY_VERSION
from warren.broker.model.vhost.vhost import VirtualHost
from warren.broker.model.virtual_clock import VirtualClock
from warren.wire.content import body_payload, join_content
from warren.wire.properties import Properties, encode

INCARNATION = 1
OTHER = 2


@dataclass
class Entry:
    """A message of the model."""

    sequence: int
    body: bytes
    priority: int
    persistent: bool
    batch: int = 0
    """With which it is on the disk."""
    redelivered: bool = False
    deliveries: int = 0
    gone: int | None = None
    """The batch in which it ended."""


class BackingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.random = Random(0)
        self.log_run: LogRun | None = None
        self.highest = -1
        self.lazy = False
        self.ready: list[Entry] = []
        self.held: list[tuple[Message, Entry]] = []
        self.ended: list[Entry] = []
        self.noise = 0
        self.noise_first = 1

    @initialize(seed=st.integers(0, 2**32), highest=st.sampled_from([-1, -1, 0, 3]))
    def start(self, seed: int, highest: int) -> None:
        self.random = Random(seed)
        self.highest = highest
        self.open(Disk())

    def open(self, disk: Disk) -> None:
        self.log_run = LogRun(
            disk,
            (INCARNATION, OTHER),
            segment_size=self.random.choice([600, 2000, 8000]),
            slack=self.random.choice([0, 3000]),
            describe=describe_payload,
        )
        log = self.log_run.log
        vhost = VirtualHost(
            b"/", VirtualClock(), log, BEHAVIOUR_BY_VERSION["4"], PortabilityChecks(strict=False)
        )
        # No event loop would continue bulk work.
        vhost.bulk_work.slice_seconds = 3600.0
        arguments = QueueArguments(max_priority=self.highest)
        self.queue = Queue(vhost, b"model", True, False, None, b"", arguments, INCARNATION)
        self.queue.log = log
        self.queue.queue_log = log.queue(INCARNATION)
        self.queue.attach_pager(QueuePager(log, self.queue.queue_log, b"model"))
        for level in self.levels:
            level.read_chunk = self.random.choice([1, 3, 256])
            level.delta_keep = self.random.choice([1, 5, 20])
        restore_messages(self.queue, self.log_run.recovery.queues[INCARNATION])
        self.queue.ready.set_lazy(self.lazy)

    @property
    def at(self) -> LogRun:
        assert self.log_run is not None
        return self.log_run

    @property
    def waiting(self) -> BackingQueue:
        return self.queue.ready

    @property
    def levels(self) -> list[BackingQueue]:
        waiting = self.queue.ready
        return waiting.levels if isinstance(waiting, PriorityBackingQueue) else [waiting]

    def level(self, priority: int) -> int:
        return min(priority, self.highest)

    # -- what clients do

    @rule(
        count=st.integers(1, 40),
        size=st.sampled_from([0, 3, 70, 700]),
        persistent=st.sampled_from(["all", "none", "some"]),
        spread=st.booleans(),
    )
    def publish(self, count: int, size: int, persistent: str, spread: bool) -> None:
        for _ in range(count):
            body = self.random.randbytes(size)
            kept = persistent == "all" or (persistent == "some" and self.random.random() < 0.5)
            priority = self.random.randint(0, 5) if spread else 0
            content = join_content(1, encode(Properties(), size), body)
            message = Message(b"exchange", b"key %d" % (priority % 2), content, size, 1)
            message.persistent = kept
            message.priority = priority
            self.queue.publish(message)
            entry = Entry(int(message.sequence), body, priority, kept)
            entry.batch = int(self.at.log.batch)
            self.ready.append(entry)

    @rule(count=st.integers(1, 60))
    def take(self, count: int) -> None:
        for _ in range(min(count, len(self.ready))):
            self.ready.sort(key=lambda entry: (-self.level(entry.priority), entry.sequence))
            entry = self.ready.pop(0)
            message = self.queue.get()
            assert message is not None
            self.compare(message, entry)
            self.held.append((message, entry))
        if not self.ready:
            assert self.queue.get() is None

    def compare(self, message: Message, entry: Entry) -> None:
        assert message.sequence == entry.sequence
        assert body_payload(message.content) == entry.body
        assert message.routing_key == b"key %d" % (entry.priority % 2)
        assert message.exchange == b"exchange"
        assert (message.priority, message.persistent) == (entry.priority, entry.persistent)
        assert (message.redelivered, message.delivery_count) == (entry.redelivered, entry.deliveries)

    @rule(share=st.sampled_from([0.3, 1.0]))
    def acknowledge(self, share: float) -> None:
        for message, entry in self.pick(share):
            self.queue.acknowledge(message)
            entry.gone = int(self.at.log.batch)
            self.ended.append(entry)

    @rule(share=st.sampled_from([0.3, 1.0]))
    def give_back(self, share: float) -> None:
        chosen = self.pick(share)
        self.queue.requeue([message for message, _ in chosen], True)
        for _, entry in chosen:
            entry.redelivered = True
            entry.deliveries += 1
            self.ready.append(entry)

    def pick(self, share: float) -> list[tuple[Message, Entry]]:
        self.random.shuffle(self.held)
        count = round(len(self.held) * share)
        chosen, self.held = self.held[:count], self.held[count:]
        return chosen

    @rule()
    def purge(self) -> None:
        assert self.queue.purge(self) == len(self.ready)
        for entry in self.ready:
            entry.gone = int(self.at.log.batch)
        self.ended += self.ready
        self.ready = []

    @rule(count=st.integers(1, 20), batched=st.booleans())
    def remove(self, count: int, batched: bool) -> None:
        """Remove messages from any place, as an operator does over HTTP."""
        removed: list[Entry] = []
        for _ in range(min(count, len(self.ready))):
            entry = self.ready.pop(self.random.randrange(len(self.ready)))
            message = self.waiting.remove(entry.priority, entry.sequence)
            assert message is not None
            assert (message.sequence, message.body_size) == (entry.sequence, len(entry.body))
            if message.stored:
                self.queue.remove_from_log(message)
            assert self.waiting.remove(entry.priority, entry.sequence) is None
            entry.gone = int(self.at.log.batch)
            removed.append(entry)
        self.ended += removed
        if batched:
            self.at.sync_all()
            for entry in removed:
                self.waiting.level(entry.priority).delta.removal_written(entry.sequence)

    @rule(limit=st.integers(1, 64))
    def browse(self, limit: int) -> None:
        """Show the messages page by page, which changes nothing."""
        self.ready.sort(key=lambda entry: (-self.level(entry.priority), entry.sequence))
        position, shown = BEFORE_ALL, 0
        while page := finish(ready_after(self.queue, position, limit)):
            for message in page:
                self.compare(message, self.ready[shown])
                position = position_of(self.queue, message)
                shown += 1
        assert shown == len(self.ready)

    # -- what the broker does

    @rule(keep=st.integers(0, 20), limit=st.sampled_from([1, 10, 1000]))
    def page_out(self, keep: int, limit: int) -> None:
        assert self.waiting.page_out(keep, limit) <= limit * len(self.levels)

    @rule(lazy=st.booleans())
    def change_mode(self, lazy: bool) -> None:
        self.lazy = lazy
        self.waiting.set_lazy(lazy)

    @rule()
    def turn(self) -> None:
        self.at.step()

    @rule()
    def sync(self) -> None:
        self.at.sync_all()

    @rule(keep=st.integers(0, 5))
    def page_all(self, keep: int) -> None:
        """Page out until no more can be paged: messages on the disk have an index by then."""
        self.at.log.request_indexes()
        for _ in range(3):
            while self.waiting.page_out(keep, 1000):
                self.at.sync_all()
            self.at.sync_all()
            self.at.step()

    @rule(share=st.sampled_from([0.8, 1.0]))
    def churn(self, share: float) -> None:
        """Another queue's messages come and go: segments empty, and what else is in them is copied forward."""
        log = self.at.log
        other = log.queue(OTHER)
        for _ in range(6):
            first = self.noise + 1
            for _ in range(12):
                self.noise += 1
                message = Message(b"", b"", join_content(1, encode(Properties(), 60), bytes(60)), 60, 1)
                self.store_other(message)
            self.at.sync_all()
            for sequence in range(first, self.noise + 1):
                if self.random.random() < share:
                    log.acknowledge(other, sequence)
        self.at.sync_all()

    def store_other(self, message: Message) -> None:
        log = self.at.log
        log.append_message(log.queue(OTHER), self.noise, message_head(message), message.content)

    # -- how it ends

    @rule()
    @precondition(lambda self: self.log_run is not None)
    def kill(self) -> None:
        synced = int(self.at.log.synced)
        self.after(self.at.kill(), synced, clean=False)

    @rule()
    def cut_power(self) -> None:
        run = self.at
        synced = int(run.log.synced)
        disk = run.disk.cut_power(self.random)
        run.end()
        self.after(disk, synced, clean=False)

    @rule()
    def close(self) -> None:
        if self.held:
            self.give_back(1.0)
        self.queue.stop()
        batch = int(self.at.log.batch)
        self.after(self.at.close(), batch, clean=True)

    def after(self, disk: Disk, synced: int, *, clean: bool) -> None:
        """Compare the messages that the next process recovers with the model, and go on with them."""
        known = {entry.sequence: entry for entry in [*self.ready, *(e for _, e in self.held), *self.ended]}
        self.open(disk)
        self.noise = max(self.noise, int(self.at.recovery.queues[OTHER].last_sequence))
        found = self.at.recovery.queues[INCARNATION].messages
        ready = []
        for sequence, payload, mark in found:
            message = Message(b"", b"", b"", 0, 0)
            fill_message(message, payload)
            apply_mark(message, mark)
            entry = known[sequence]
            assert entry.persistent
            assert body_payload(message.content) == entry.body
            assert entry.gone is None or entry.gone > synced, "what was acknowledged came back"
            if clean:
                assert message.delivery_count == entry.deliveries
            ready.append(
                Entry(
                    sequence,
                    entry.body,
                    entry.priority,
                    True,
                    redelivered=not clean or entry.redelivered,
                    deliveries=int(message.delivery_count),
                )
            )
        there = {entry.sequence for entry in ready}
        for sequence, entry in known.items():
            if entry.persistent and entry.gone is None and entry.batch <= synced:
                assert sequence in there, "what was synced is lost"
        self.ready, self.held, self.ended = ready, [], []

    # -- what always holds

    @invariant()
    def sub_queues(self) -> None:
        if self.log_run is None:
            return
        assert self.at.failures == []
        for level in self.levels:
            assert not level.q1 or level.q3, "Q1 => Q3"
            assert not level.q2 or level.delta.count, "Q2 => delta"
            assert not level.delta.count or level.q3, "delta => Q3"
            assert bool(level.count) == bool(level.q3 or level.q4 or level.returned)
            held = level.message_objects()
            assert level.count == len(held) + level.delta.count
            assert level.resident == sum(1 for message in held if message.content)
            assert level.resident_bytes == sum(int(m.body_size) for m in held if m.content)
            assert all(message.content for message in (*level.q1, *level.q4))
            in_order = [int(m.sequence) for part in (level.q4, level.q3, level.q2, level.q1) for m in part]
            assert in_order == sorted(in_order)
        assert self.waiting.count == len(self.ready)
        assert self.waiting.bytes == sum(len(entry.body) for entry in self.ready)
        kept = [entry for entry in self.ready if entry.persistent]
        assert self.waiting.persistent_totals() == (len(kept), sum(len(entry.body) for entry in kept))

    def teardown(self) -> None:
        if self.log_run is not None:
            self.take(len(self.ready))
            self.at.kill()


def finish(steps: Generator[None, None, list[Message]]) -> list[Message]:
    """Run a generator to its end, and return its value."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: list[Message] = done.value
            return found


BackingMachine.TestCase.settings = settings(
    max_examples=examples(120),
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestBacking = BackingMachine.TestCase


@pytest.mark.parametrize("seed", range(12))
def test_a_message_that_is_removed_from_memory_is_not_read_again_from_disk(seed: int) -> None:
    """The log lists it until its removal is written. Until then, the messages around it may move to the disk."""
    machine = BackingMachine()
    machine.start(seed=seed, highest=-1)
    machine.publish(count=40, persistent="all", size=70, spread=False)
    machine.sync()
    machine.page_out(keep=0, limit=1000)
    machine.at.log.request_indexes()
    machine.remove(count=10, batched=False)
    for _ in range(6):
        machine.page_out(keep=0, limit=1000)
        machine.sub_queues()
        machine.turn()
    machine.remove(count=5, batched=False)
    machine.browse(limit=7)
    machine.take(count=12)
    machine.sub_queues()
    machine.remove(count=3, batched=True)
    machine.close()
    machine.sub_queues()
    machine.teardown()
