"""Simulated deliveries with accidents of every kind, captured by publishers, consumers and optionally the broker.

The expected findings of an audit are computed by comparing the captured events with each other, in plain Python.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pandas as pd

from tests.spark.captured_events import Source

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
ROUTES = {
    "placed": ("handling", "archive"),
    "paid": ("handling", "journal"),
    "shipped": ("shipping",),
    "noted": ("journal",),
}
STREAM = "journal"
BATCH = 300
"""Events of all sources after which each source's events become a batch."""


class SimulatedShop:
    """Two publishers, a consumer for each queue (two for `shipping`), one exchange."""

    def __init__(self, seed: int, messages: int, *, broker: bool) -> None:
        self.draw = random.Random(seed)
        self.publishers = [Source(app="web", name=f"web-{n}") for n in range(2)]
        self.consumers = {
            "handling": [Source(app="handling", name="handling-0")],
            "archive": [Source(app="archive", name="archive-0")],
            "shipping": [Source(app="shipping", name=f"shipping-{n}") for n in range(2)],
            STREAM: [Source(app="reader", name=f"reader-{n}") for n in range(2)],
        }
        self.broker = Source("broker", "rabbit", "rabbit-0") if broker else None
        self.events: list[tuple[int, Source, str, str, dict[str, Any]]] = []
        for number in range(messages):
            self.simulate_message(f"m{number:04}", START + number * SECOND // 5)
        in_order = sorted(self.events, key=itemgetter(0))
        for place, (at, source, event, message_id, known) in enumerate(in_order):
            source.record(event, at, message_id, **known)
            # The last events get a batch each.
            if place % BATCH == 0 or place > len(in_order) - BATCH // 5:
                self.flush()
        self.flush()

    def flush(self) -> None:
        for source in self.sources:
            source.flush()

    @property
    def sources(self) -> list[Source]:
        of_queues = [source for sources in self.consumers.values() for source in sources]
        return [*self.publishers, *of_queues, *([self.broker] if self.broker else [])]

    def add(self, at: int, source: Source | None, event: str, message_id: str, **known: Any) -> None:
        if source is not None:
            self.events.append((at, source, event, message_id, known))

    def simulate_message(self, message_id: str, at: int) -> None:
        draw = self.draw
        number = draw.randrange(2)
        key = draw.choice([*ROUTES])
        address = {"exchange": "orders", "routing_key": key, "connection": f"c{number}"}
        publisher = self.publishers[number]
        self.add(at, publisher, "published", message_id, **address)
        fault = draw.random()
        if fault < 0.04:
            return
        if fault < 0.06:
            self.add(at + 500, publisher, "returned", message_id, **address, reason="NO_ROUTE")
            self.add(at + 600, self.broker, "published", message_id, **address)
            return
        if fault < 0.07:
            self.add(at + 500, publisher, "nacked", message_id, exchange="orders", connection=f"c{number}")
            return
        if fault < 0.9:
            self.add(at + 900, publisher, "confirmed", message_id, exchange="orders", connection=f"c{number}")
        for queue in ROUTES[key]:
            if queue == STREAM:
                self.simulate_stream(message_id, at + 1000, address)
            else:
                self.simulate_queue(message_id, queue, at + 1000, address, draw.random())

    def simulate_stream(self, message_id: str, at: int, address: dict[str, Any]) -> None:
        """Simulate a stream: each reader begins anywhere, and sometimes again from an earlier place."""
        self.add(at, self.broker, "published", message_id, queue=STREAM, stream=True, **address)
        for reader in self.consumers[STREAM]:
            subscription = {"queue": STREAM, "connection": reader.name, "consumer": "t", "stream": True}
            for _ in range(self.draw.choice([0, 1, 1, 2])):
                given = at + self.draw.randrange(1000, 5 * SECOND)
                self.deliver(given, message_id, subscription, address, reader)
                self.settle(given + 1000, message_id, subscription, reader)

    def simulate_queue(
        self, message_id: str, queue: str, at: int, address: dict[str, Any], fault: float
    ) -> None:
        """Simulate one queue: most messages are delivered and acknowledged in time and once."""
        draw = self.draw
        self.add(at, self.broker, "published", message_id, queue=queue, **address)
        consumer = draw.choice(self.consumers[queue])
        # Some messages are delayed for so long that others overtake them.
        wait = draw.randrange(1000, 20_000) if draw.random() < 0.9 else draw.randrange(20_000, 3_000_000)
        given = at + wait
        if fault < 0.02:
            self.add(given, self.broker, "expired", message_id, queue=queue, reason="expired")
            self.add(given, self.broker, "dead_lettered", message_id, queue=queue, reason="expired")
            return
        subscription = {"queue": queue, "connection": consumer.name, "consumer": f"{queue}-tag"}
        self.deliver(given, message_id, subscription, address, consumer)
        work = draw.randrange(500, 40_000) if draw.random() < 0.97 else draw.randrange(60, 90) * SECOND
        if fault < 0.05:
            self.add(given + work, consumer, "rejected", message_id, **subscription)
            self.add(
                given + work + 1, self.broker, "dead_lettered", message_id, queue=queue, reason="rejected"
            )
            # Some rejected messages are replayed, and some of those twice.
            replayed = {"exchange": "", "routing_key": queue, "connection": "operator"}
            for again in range(draw.choice([0, 0, 1, 2])):
                back = given + work + (again + 1) * SECOND
                self.add(back, self.broker, "published", message_id, queue=queue, **replayed)
                self.deliver(back + 1000, message_id, subscription, replayed, consumer)
                self.settle(back + 2000, message_id, subscription, consumer)
            return
        if fault < 0.08:
            self.add(given + work, consumer, "requeued", message_id, **subscription)
            given += work + 1000
            self.deliver(given, message_id, subscription, address, consumer, redelivered=True)
        if fault < 0.09:
            return
        if fault < 0.11:
            # The SDK's own dead letter: its copy is confirmed, then the message is acknowledged.
            self.add(given + work, consumer, "dead_lettered", message_id, queue=queue, reason="failed")
        self.settle(given + work, message_id, subscription, consumer)
        if fault > 0.97:
            # The same message again, as if it had been published twice, or its acknowledgement lost.
            again = given + work + 5000
            self.deliver(
                again, message_id, subscription, address, consumer, redelivered=fault > 0.985 or None
            )
            self.settle(again + work, message_id, subscription, consumer)
        elif fault > 0.94:
            # A retry: a copy with the number of its attempt.
            again = given + work + 5000
            self.deliver(again, message_id, subscription, address, consumer, attempt=2)
            self.settle(again + work, message_id, subscription, consumer)

    def deliver(
        self,
        at: int,
        message_id: str,
        subscription: dict[str, Any],
        address: dict[str, Any],
        consumer: Source,
        **known: Any,
    ) -> None:
        fields = {
            **subscription,
            "exchange": address["exchange"],
            "routing_key": address["routing_key"],
            **known,
        }
        self.add(at - 300, self.broker, "delivered", message_id, **fields)
        self.add(at, consumer, "delivered", message_id, **fields)

    def settle(self, at: int, message_id: str, subscription: dict[str, Any], consumer: Source) -> None:
        self.add(at, consumer, "acked", message_id, **subscription)
        self.add(at + 300, self.broker, "acked", message_id, **subscription)


class Expected:
    """The same numbers computed with pandas, by comparing each message with every other."""

    def __init__(self, sources: Sequence[Source], settle: int, late: int) -> None:
        events = pd.DataFrame([event for source in sources for event in source.events])
        for name in ("redelivered", "attempt", "stream"):
            if name not in events:
                events[name] = None
        self.horizon = int(events["at"].max()) - settle
        published = events[(events["event"] == "published") & (events["by"] == "sdk")]
        self.published = published.set_index("message_id")
        self.in_queue = events[events["queue"].notna() & events["stream"].isna()]
        self.delivered = self.in_queue[self.in_queue["event"] == "delivered"]
        self.acked = self.in_queue[self.in_queue["event"] == "acked"]
        self.events = events
        self.late = late

    def count_messages_with(self, event: str) -> int:
        """Return the number of messages with such an event in any queue."""
        return int(self.events[self.events["event"] == event]["message_id"].nunique())

    def dead_by_sdk(self, key: tuple[str, str]) -> int:
        """Return how often an application dead-lettered the message, and so acknowledged it without success."""
        own = self.events[(self.events["event"] == "dead_lettered") & (self.events["by"] == "sdk")]
        return int(((own["message_id"] == key[0]) & (own["queue"] == key[1])).sum())

    def successes(self) -> set[tuple[str, str]]:
        """Return acknowledgements by message and queue, without those of the SDK's own dead letters."""
        counts = self.acked.groupby(["message_id", "queue", "by"]).size().groupby(level=[0, 1]).max()
        return {key for key, times in counts.items() if times > self.dead_by_sdk(key)}

    def lost(self) -> set[str]:
        ends = self.events[~self.events["event"].isin(["published", "confirmed"])]
        accounted_for = set(ends["message_id"])
        accounted_for |= set(self.in_queue["message_id"])
        unrouted = self.events[(self.events["event"] == "published") & (self.events["by"] == "broker")]
        accounted_for |= set(unrouted["message_id"])
        return {
            message_id
            for message_id, about in self.published.iterrows()
            if message_id not in accounted_for and about["at"] <= self.horizon and self.was_overtaken(about)
        }

    def was_overtaken(self, about: Any) -> bool:
        """Return whether the queue received such a message before this one, and delivered one after it."""
        of_kind = self.published[self.published["routing_key"] == about["routing_key"]]
        arrived = self.in_queue[self.in_queue["event"].isin(["published", "delivered"])]
        for _, there in arrived[arrived["message_id"].isin(of_kind.index)].groupby("queue"):
            came = there.groupby("message_id")["at"].min()
            others = of_kind.loc[came.index]
            before = (others["at"] < about["at"]).any()
            same = (others["source"] == about["source"]) & (others["sequence"] > about["sequence"])
            if before and (came[same] <= self.horizon).any():
                return True
        return False

    def duplicated(self) -> set[tuple[str, str]]:
        found = set()
        for key, acks in self.acked.groupby(["message_id", "queue"]):
            times = acks.groupby("by").size().max()
            given = self.delivered[
                (self.delivered["message_id"] == key[0]) & (self.delivered["queue"] == key[1])
            ]
            if times > given["attempt"].fillna(1).nunique() + self.dead_by_sdk(key):
                found.add(key)
        return found

    def reordered(self) -> set[tuple[str, str]]:
        found = set()
        first = self.delivered.sort_values("sequence").drop_duplicates(["message_id", "queue", "by"])
        first = first[first["redelivered"].isna()]
        for (queue, _), seen in first.groupby(["queue", "source"]):
            passed: dict[tuple[str, str], int] = defaultdict(int)
            for each in seen.sort_values("sequence").itertuples():
                about = self.published.loc[each.message_id]
                address = about["source"], about["routing_key"]
                if about["sequence"] < passed[address]:
                    found.add((each.message_id, queue))
                passed[address] = max(passed[address], about["sequence"])
        return found

    def latencies(self) -> dict[str, tuple[list[float], list[float]]]:
        """Return, by queue, the sorted seconds to the first delivery and from there to the first acknowledgement."""
        given = self.delivered[self.delivered["by"] == "sdk"].groupby(["queue", "message_id"])["at"].min()
        ended = self.acked.groupby(["queue", "message_id"])["at"].min()
        found = {}
        for queue in given.index.levels[0]:
            begun = self.published["at"]
            to_delivery = (given[queue] - begun.reindex(given[queue].index)) / SECOND
            to_end = ((ended[queue] - given[queue]) / SECOND).dropna()
            found[queue] = (sorted(to_delivery), sorted(to_end))
        return found

    def late_messages(self) -> set[tuple[str, str]]:
        ended = self.acked.groupby(["message_id", "queue"])["at"].min()
        done = self.successes()
        return {
            key
            for key, at in ended.items()
            if key in done and (at - self.published.loc[key[0]]["at"]) > self.late
        }


def quantile(values: Sequence[float], level: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return values[math.ceil(level * len(values)) - 1]
