"""Simulation of a broker, publishers and consumers with captured events, and the expected numbers from pandas."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pandas as pd

from tests.spark.captured_events import Source

MICROS = 1_000_000
BEGAN = 1_780_000_000
"""Unix time of the first second."""


@dataclass
class Queue:
    """Use of a queue; times in seconds."""

    name: str
    rate: float
    """Publishes a second."""
    consumers: int = 1
    prefetch: int = 10
    handling: float = 0.01
    latency: float = 0.001
    """Seconds from the broker to a consumer, and from there back."""
    rejected: float = 0.0
    """Share of the deliveries that are rejected, from 0 to 1; `requeued` likewise."""
    requeued: float = 0.0
    no_ack: bool = False
    max_length: int | None = None
    """Maximum number of ready messages; the oldest one above it is dropped. None for no limit."""
    waiting: int = 0
    """Number of messages in the queue before the capture began."""
    exchange: str = ""
    seed: int = 1


@dataclass
class EventLog:
    """Events in the order of time: plain dictionaries with `at` in microseconds."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def record(self, by: str, event: str, at: float, **known: Any) -> None:
        given = {key: value for key, value in known.items() if value not in (None, False)}
        self.events.append({"by": by, "event": event, "at": round((BEGAN + at) * MICROS), **given})

    def until(self, seconds: float) -> list[dict[str, Any]]:
        kept = [each for each in self.events if each["at"] < (BEGAN + seconds) * MICROS]
        return sorted(kept, key=lambda each: each["at"])


def simulate(queue: Queue, seconds: float) -> list[dict[str, Any]]:
    """Return the events of the broker and of the consumers' SDK."""
    draw, event_log, order = random.Random(queue.seed), EventLog(), count()
    agenda: list[tuple[float, int, str, Any]] = []
    ready: deque[tuple[int, bool]] = deque((-number - 1, False) for number in range(queue.waiting))
    held = [0] * queue.consumers
    free = [0.0] * queue.consumers
    turn = 0

    def schedule(at: float, what: str, with_: Any) -> None:
        heapq.heappush(agenda, (at, next(order), what, with_))

    def subscription_of(number: int) -> dict[str, Any]:
        return {
            "queue": queue.name,
            "connection": f"connection {number}",
            "consumer": f"{queue.name}-{number}",
        }

    def deliver(at: float) -> None:
        nonlocal turn
        for _ in range(queue.consumers):
            while ready and (queue.no_ack or held[turn] < queue.prefetch):
                message, again = ready.popleft()
                known = {"redelivered": again, "no_ack": queue.no_ack, "routing_key": queue.name}
                event_log.record(
                    "broker", "delivered", at, **subscription_of(turn), exchange=queue.exchange, **known
                )
                held[turn] += not queue.no_ack
                schedule(at + queue.latency, "arrive", (turn, message, again))
            turn = (turn + 1) % queue.consumers

    at = draw.expovariate(queue.rate)
    published = 0
    for number in range(queue.consumers):
        for by in ("broker", "sdk"):
            event_log.record(
                by, "consuming", 0, **subscription_of(number), prefetch=queue.prefetch, no_ack=queue.no_ack
            )
    while at < seconds:
        schedule(at, "publish", published)
        published += 1
        at += draw.expovariate(queue.rate)
    if queue.consumers:
        deliver(0.0001)
    while agenda:
        at, _, what, given = heapq.heappop(agenda)
        if what == "publish":
            size = {"bytes": 100 + given % 50}
            event_log.record("sdk", "published", at, exchange=queue.exchange, routing_key=queue.name, **size)
            event_log.record(
                "broker",
                "published",
                at,
                exchange=queue.exchange,
                routing_key=queue.name,
                queue=queue.name,
                **size,
            )
            ready.append((given, False))
            if queue.consumers:
                deliver(at)
            if queue.max_length is not None and len(ready) > queue.max_length:
                ready.popleft()
                event_log.record("broker", "dead_lettered", at, queue=queue.name, reason="maxlen")
        elif what == "arrive":
            number, message, again = given
            known = {"redelivered": again, "no_ack": queue.no_ack, "routing_key": queue.name}
            event_log.record(
                "sdk", "delivered", at, **subscription_of(number), exchange=queue.exchange, **known
            )
            if queue.no_ack:
                continue
            free[number] = max(at, free[number]) + queue.handling * draw.uniform(0.5, 1.5)
            schedule(free[number], "handled", (number, message, draw.random()))
        elif what == "handled":
            number, message, luck = given
            event_log.record("sdk", outcome(queue, luck), at, **subscription_of(number))
            schedule(at + queue.latency, "settle", given)
        else:
            number, message, luck = given
            event_log.record("broker", outcome(queue, luck), at, **subscription_of(number))
            held[number] -= 1
            if outcome(queue, luck) == "requeued":
                ready.appendleft((message, True))
            if outcome(queue, luck) == "rejected":
                event_log.record("broker", "dead_lettered", at, queue=queue.name, reason="rejected")
            deliver(at)
    return event_log.until(seconds)


def outcome(queue: Queue, luck: float) -> str:
    if luck < queue.rejected:
        return "rejected"
    return "requeued" if luck < queue.rejected + queue.requeued else "acked"


def sources(events: Sequence[dict[str, Any]], every: int = 500) -> list[Source]:
    """Return the events as capture sends them: one source for each recorder, in batches."""
    found = {by: Source(by, "shop", f"source {by}") for by in ("broker", "sdk")}
    for number, each in enumerate(events):
        known = {key: value for key, value in each.items() if key not in ("by", "event", "at", "bytes")}
        found[each["by"]].record(each["event"], each["at"], size=each.get("bytes", -1), **known)
        if number % every == every - 1:
            found[each["by"]].flush()
    return list(found.values())


def event_table(events: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return the events with the change that each causes."""
    frame = pd.DataFrame(events)
    for column in ("redelivered", "no_ack"):
        given = frame[column] if column in frame else pd.Series(False, index=frame.index)
        frame[column] = given.map(lambda value: value is True)
    if "reason" not in frame:
        frame["reason"] = None
    event, auto = frame.event, frame.no_ack
    settled = event.isin(["acked", "rejected", "requeued"])
    frame["unacked"] = ((event == "delivered") & ~auto).astype(int) - settled.astype(int)
    dropped = (event == "dead_lettered") & (frame.reason == "maxlen")
    frame["ready"] = (
        (event == "published").astype(int)
        - (event == "delivered").astype(int)
        + (event == "requeued").astype(int)
        - dropped.astype(int)
    )
    frame["second"] = frame["at"] // MICROS
    return frame


def at_seconds(rows: pd.DataFrame, change: str, first: int, last: int) -> pd.Series:
    """Return the level at the end of each second, raised so that it is never below 0."""
    steps = rows.groupby("second")[change].sum().reindex(range(first, last), fill_value=0).cumsum()
    return steps + max(0, -steps.min())


def consumer_load(rows: pd.DataFrame, last: int) -> tuple[float, float, float]:
    """Return a consumer's seconds, its average number of messages, and the share of seconds at whose end it held none."""
    first = int(rows.second.min())
    levels = rows.unacked.cumsum().to_numpy()
    times = [*rows["at"].to_numpy(), last * MICROS]
    area = sum(level * (times[at + 1] - times[at]) for at, level in enumerate(levels))
    samples = at_seconds(rows, "unacked", first, last)
    return last - first, area / MICROS / (last - first), float((samples <= 0).mean())


def trend(levels: Sequence[float], step: float) -> tuple[float, float]:
    """Return slope and standard error of a sum of autocorrelated changes."""
    changes = pd.Series(levels).diff().dropna()
    alike = changes - changes.mean()
    if not changes.std():
        return changes.mean() / step, 0.0
    resemblance = float((alike * alike.shift(1)).sum() / (alike**2).sum())
    resemblance = min(max(resemblance, 0.0), 0.9)
    fewer = len(changes) * (1 - resemblance) / (1 + resemblance)
    return changes.mean() / step, changes.std() / math.sqrt(fewer) / step
