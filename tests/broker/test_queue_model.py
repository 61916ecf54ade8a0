"""Model-based test of one queue: any sequence of client operations, time steps, slices of bulk work and restarts."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.blocking_client import Channel, Connection, Message
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.tiers import examples
from warren.broker.model.bulk_work import SLICE_SECONDS, BulkWork

# Some hundred syncs, one after the other.
pytestmark = pytest.mark.timeout(1200)

QUEUE = "model"
DEAD_LETTER_QUEUE = "model-dead-letters"
MODES = st.sampled_from([None, 1, 2])
"""Delivery modes of publishes; None for a message without the property."""


@dataclass
class Entry:
    """A message of the model."""

    number: int
    persistent: bool
    """True if its delivery mode is 2. All others survive a restart in a quorum queue only."""
    dies: float | None
    redelivered: bool = False
    deliveries: int = 0

    @property
    def body(self) -> bytes:
        return b"%d" % self.number


@dataclass
class Held:
    """An unacknowledged message of a consumer or a basic.get."""

    entry: Entry
    tag: int


class QueueMachine(RuleBasedStateMachine):
    """Ready messages in order; each consumer takes from the head while it has room."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.broker = InProcessBroker(self.folder / "data")
        self.broker.start()
        self.published = 0
        self.started = 0
        self.time = 0.0
        self.ready: list[Entry] = []
        self.dead: list[Entry] = []
        self.maximum: int | None = None
        self.limit: int | None = None
        self.quorum = False
        self.slice_seconds = SLICE_SECONDS
        self.connect()

    @initialize(
        ttl=st.none() | st.sampled_from([1000, 3000]),
        maximum=st.none() | st.integers(1, 4),
        limit=st.none() | st.integers(0, 2),
        quorum=st.booleans(),
    )
    def declare(self, ttl: int | None, maximum: int | None, limit: int | None, quorum: bool) -> None:
        self.ttl, self.maximum, self.limit, self.quorum = ttl, maximum, limit, quorum
        arguments = {
            "x_message_ttl": ttl,
            "x_max_length": maximum,
            # A quorum queue without the argument has a limit of its own.
            "x_delivery_limit": -1 if limit is None and quorum else limit,
            "x_queue_type": "quorum" if quorum else None,
        }
        given: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
        channel = self.channel
        channel.declare(DEAD_LETTER_QUEUE, durable=True)
        channel.declare("sync", durable=True, x_max_length=0)
        channel.declare(
            QUEUE,
            durable=True,
            **given,
            x_dead_letter_exchange="",
            x_dead_letter_routing_key=DEAD_LETTER_QUEUE,
        )

    def connect(self) -> None:
        self.bulk_work().slice_seconds = self.slice_seconds
        self.connection = Connection(self.broker.url)
        self.channel: Channel = self.connection.channel()
        self.channel.confirm()
        self.sent = 0
        self.held: list[Held] = []
        self.consumers: dict[str, tuple[Channel, int, list[Held]]] = {}
        """By tag: its channel, its prefetch, and what it has unacknowledged."""
        self.round: list[str] = []
        """Tags of the consumers with room, the next one first."""

    # -- the model's rules

    def bury(self, entry: Entry) -> None:
        self.dead.append(entry)

    def expire(self) -> None:
        while self.ready and self.ready[0].dies is not None and self.ready[0].dies <= self.time:
            self.bury(self.ready.pop(0))

    def overflow(self) -> None:
        while self.maximum is not None and len(self.ready) > self.maximum:
            self.bury(self.ready.pop(0))

    def serve(self) -> None:
        """Hand out what is ready, and compare with what arrives."""
        self.expire()
        while self.ready and self.round:
            self.hand_out(self.ready.pop(0))
            self.expire()

    def hand_out(self, entry: Entry) -> None:
        """To the consumer whose turn it is, which stays in the round while it has room."""
        tag = self.round.pop(0)
        channel, prefetch, held = self.consumers[tag]
        (message,) = channel.deliveries(1)
        self.check(message, entry)
        held.append(Held(entry, message.tag))
        if len(held) < prefetch:
            self.round.append(tag)

    def check(self, message: Message, entry: Entry) -> None:
        assert (message.body, message.redelivered) == (entry.body, entry.redelivered)
        if self.limit is not None:
            assert message.headers.get("x-delivery-count", 0) == entry.deliveries

    def give_back(self, entries: list[Entry], *, counts: bool = True) -> None:
        """:param counts: whether this counts against the delivery limit: all but basic.nack does"""
        for entry in entries:
            entry.redelivered = True
            entry.deliveries += counts
            if self.limit is not None and entry.deliveries > self.limit:
                self.bury(entry)
            else:
                self.ready.append(entry)
        self.ready.sort(key=lambda entry: entry.number)
        self.overflow()

    def all_held(self) -> list[tuple[Channel, str, Held]]:
        found = [(self.channel, "", held) for held in self.held]
        for tag, (channel, _, helds) in self.consumers.items():
            found.extend((channel, tag, held) for held in helds)
        return found

    def drop(self, tag: str, held: Held) -> None:
        """Remove an unacknowledged message; its consumer may be below its prefetch limit again."""
        if not tag:
            self.held.remove(held)
            return
        _, prefetch, helds = self.consumers[tag]
        full = len(helds) >= prefetch
        helds.remove(held)
        if full and tag not in self.round:
            self.round.append(tag)

    # -- what can happen

    @rule(mode=MODES, ttl=st.none() | st.sampled_from([0, 500, 2000]))
    def publish(self, mode: int | None, ttl: int | None) -> None:
        self.publish_all(1, mode, ttl)

    @rule(count=st.sampled_from([70, 150]), mode=MODES, ttl=st.none() | st.sampled_from([2000]))
    def publish_many(self, count: int, mode: int | None, ttl: int | None) -> None:
        self.publish_all(count, mode, ttl)

    def publish_all(self, count: int, mode: int | None, ttl: int | None) -> None:
        ttls = [value for value in (ttl, self.ttl) if value is not None]
        dies = self.time + min(ttls) / 1000 if ttls else None
        properties: dict[str, Any] = {} if ttl is None else {"expiration": str(ttl)}
        if mode is not None:
            properties["delivery_mode"] = mode
        entries = [Entry(self.published + number, mode == 2, dies) for number in range(1, count + 1)]
        self.published += count
        self.sent += count
        for entry in entries:
            self.channel.publish(QUEUE, entry.body, **properties)
        self.channel.settled_until(self.sent)
        for entry in entries:
            if self.round and not self.ready:
                # Straight to a consumer: neither its TTL nor the length counts.
                self.hand_out(entry)
            else:
                self.ready.append(entry)
                self.overflow()
                self.expire()

    @rule(seconds=st.sampled_from([0.0, SLICE_SECONDS]))
    def divide(self, seconds: float) -> None:
        """Divide bulk work into slices of this time from now on; with 0, each does as little as it can."""
        self.slice_seconds = seconds
        self.bulk_work().slice_seconds = seconds

    def bulk_work(self) -> BulkWork:
        return self.broker.virtual_host().bulk_work

    @rule()
    def get(self) -> None:
        self.expire()
        message = self.channel.get(QUEUE)
        if not self.ready:
            assert message is None
            return
        assert message is not None
        entry = self.ready.pop(0)
        self.check(message, entry)
        self.held.append(Held(entry, message.tag))
        self.expire()

    @precondition(lambda self: len(self.consumers) < 3)
    @rule(prefetch=st.integers(1, 3) | st.just(200))
    def consume(self, prefetch: int) -> None:
        channel = self.connection.channel()
        channel.qos(prefetch)
        self.started += 1
        tag = channel.consume(QUEUE, f"c{self.started:02}")
        self.consumers[tag] = (channel, prefetch, [])
        self.round.append(tag)
        self.serve()

    @precondition(lambda self: self.all_held())
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        channel, tag, held = data.draw(st.sampled_from(self.all_held()))
        channel.ack(held.tag)
        self.drop(tag, held)
        self.serve()
        channel.ready(QUEUE)

    @precondition(lambda self: self.all_held())
    @rule(data=st.data(), requeue=st.booleans(), by_nack=st.booleans())
    def reject(self, data: st.DataObject, requeue: bool, by_nack: bool) -> None:
        channel, tag, held = data.draw(st.sampled_from(self.all_held()))
        settle = channel.nack if by_nack else channel.reject
        settle(held.tag, requeue=requeue)
        if requeue:
            # It is served before its consumer has room again.
            self.give_back([held.entry], counts=not by_nack)
            had_room = tag in self.round or not tag
            if tag and not had_room:
                self.consumers[tag][2].remove(held)
                self.serve()
                self.round.append(tag)
            else:
                self.drop(tag, held)
        else:
            self.bury(held.entry)
            self.drop(tag, held)
        self.serve()
        channel.ready(QUEUE)

    @precondition(lambda self: any(held for _, _, held in self.consumers.values()))
    @rule(data=st.data(), how=st.sampled_from(["ack", "requeue", "reject"]))
    def settle_all(self, data: st.DataObject, how: str) -> None:
        tag = data.draw(st.sampled_from(sorted(tag for tag, (_, _, held) in self.consumers.items() if held)))
        channel, _, held = self.consumers[tag]
        settled = held[:]
        held.clear()
        if how == "ack":
            channel.ack(settled[-1].tag, multiple=True)
        else:
            channel.nack(settled[-1].tag, multiple=True, requeue=how == "requeue")
        if how == "requeue":
            # They are served before their consumer, if it was full, has room again.
            self.give_back([each.entry for each in settled], counts=False)
            self.serve()
        elif how == "reject":
            for each in settled:
                self.bury(each.entry)
        if tag not in self.round:
            self.round.append(tag)
        self.serve()
        channel.ready(QUEUE)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def close_channel(self, data: st.DataObject) -> None:
        tag = data.draw(st.sampled_from(sorted(self.consumers)))
        channel, _, helds = self.consumers.pop(tag)
        self.round = [other for other in self.round if other != tag]
        channel.close()
        self.give_back([held.entry for held in helds])
        self.serve()

    @rule()
    def purge(self) -> None:
        self.expire()
        assert self.channel.purge(QUEUE) == len(self.ready)
        self.ready.clear()

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        end = self.time + seconds
        self.broker.advance(seconds)
        self.time = end
        self.expire()

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        self.sent += 1
        self.channel.publish("sync", delivery_mode=2)
        self.channel.settled_until(self.sent)
        entries = [held.entry for _, _, held in self.all_held()]
        if crash:
            self.broker.crash()
            self.connection.abort()
            self.ready.extend(entries)
        else:
            self.connection.close()
            self.consumers.clear()
            self.round.clear()
            self.give_back(entries)
            self.expire()
            self.broker.restart()
        self.connect()
        kept = [entry for entry in self.ready if entry.persistent or self.quorum]
        self.ready = sorted(kept, key=lambda entry: entry.number)
        for entry in self.ready:
            entry.redelivered = entry.redelivered or crash
        self.dead = [entry for entry in self.dead if entry.persistent]
        self.expire()

    # -- what always holds

    @invariant()
    def the_counts_agree(self) -> None:
        assert self.channel.state(QUEUE) == (len(self.ready), len(self.consumers))

    @invariant()
    def nothing_else_is_delivered(self) -> None:
        for channel in self.connection.channels.values():
            assert not [event for event in channel.events if isinstance(event, Message)]

    @invariant()
    def the_dead_are_buried(self) -> None:
        # A publish may leave some to later slices.
        wait_until(lambda: self.broker.call(lambda: self.bulk_work().is_idle), "the bulk work is finished")
        assert self.channel.ready(DEAD_LETTER_QUEUE) == len(self.dead)

    def teardown(self) -> None:
        self.connection.abort()
        self.broker.__exit__(None, None, None)
        shutil.rmtree(self.folder)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(
    max_examples=examples(60),
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
