"""What the events say about a message: facts that add up, so that a part of the events may come first and the rest later.

A row of facts is about one message in one queue, or, where `queue` is null, about its publication. Facts of several rows
with the same key are put together by `folded`; what comes out is the same in whatever parts the events came.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warren.wire import events as event

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = ("message_id", "queue")
SIDES = ("sdk", "broker")
PLACE = ("at", "source", "sequence", "connection")
"""When something was seen, and where it stands in the order of who saw it."""


Condition = Callable[[], "Column"]


@dataclass(frozen=True)
class Fact:
    """A column: what makes it of events, and of the same column of other rows."""

    name: str
    of_events: Callable[[], Column]
    of_facts: Callable[[], Column]


def facts_of(events: DataFrame) -> DataFrame:
    """The rows of facts, from the columns of `events_of`; what has no message id has none in its row."""
    return events.groupBy(*KEY).agg(*[fact.of_events().alias(fact.name) for fact in facts()])


def folded(rows: DataFrame) -> DataFrame:
    """One row a message and queue. Messages without an id cannot be told apart and are left out."""
    from pyspark.sql import functions as F

    columns = [fact.of_facts().alias(fact.name) for fact in facts()]
    return rows.where(F.col("message_id").isNotNull()).groupBy(*KEY).agg(*columns)


def facts() -> list[Fact]:
    """`sent` and `taken` are the first publication as the application and the broker saw it; the others are counts, first
    times, and for either side what it saw of the deliveries."""
    published = ("exchange", "routing_key", "bytes", "reason")
    return [
        first("sent", told(event.PUBLISHED, "sdk"), *published),
        count("sends", told(event.PUBLISHED, "sdk")),
        first("taken", told(event.PUBLISHED, "broker"), *published),
        count("takes", told(event.PUBLISHED, "broker")),
        earliest("confirmed_at", told(event.CONFIRMED)),
        count("nacks", told(event.NACKED)),
        count("returns", told(event.RETURNED)),
        *[fact for side in SIDES for fact in deliveries(side)],
        attempts(),
        count("requeues", told(event.REQUEUED)),
        count("expiries", told(event.EXPIRED)),
        *[count(f"dead_letters_{side}", told(event.DEAD_LETTERED, side)) for side in SIDES],
        count("drops", told(event.DROPPED)),
        reason(),
        streamed(),
        latest("at", "last_at"),
        latest("captured_at", "captured_at"),
    ]


def deliveries(side: str) -> list[Fact]:
    """What one side saw of the deliveries."""
    from pyspark.sql import functions as F

    delivered = told(event.DELIVERED, side)
    known = ("consumer", "exchange", "routing_key", "redelivered", "no_ack")
    return [
        first(f"first_{side}", delivered, *known),
        count(f"deliveries_{side}", delivered),
        count(f"redeliveries_{side}", lambda: delivered() & F.col("redelivered")),
        count(f"automatic_{side}", lambda: delivered() & F.col("no_ack")),
        earliest(f"acked_at_{side}", told(event.ACKED, side)),
        count(f"acks_{side}", told(event.ACKED, side)),
        count(f"rejects_{side}", told(event.REJECTED, side)),
    ]


def told(kind: str, side: str | None = None) -> Condition:
    from pyspark.sql import functions as F

    def condition() -> Column:
        same = F.col("event") == kind
        return same if side is None else same & (F.col("by") == side)

    return condition


def count(name: str, condition: Condition) -> Fact:
    from pyspark.sql import functions as F

    return Fact(name, lambda: F.count_if(condition()), lambda: F.sum(name))


def earliest(name: str, condition: Condition) -> Fact:
    from pyspark.sql import functions as F

    return Fact(name, lambda: F.min(F.when(condition(), F.col("at"))), lambda: F.min(name))


def first(name: str, condition: Condition, *known: str) -> Fact:
    """The earliest such event: where it stands, and what it says in these keys."""
    from pyspark.sql import functions as F

    return Fact(name, lambda: F.min(F.when(condition(), F.struct(*PLACE, *known))), lambda: F.min(name))


def attempts() -> Fact:
    """The numbers of the attempts that were delivered: a retry that publishes a copy acknowledges each of them once."""
    from pyspark.sql import functions as F

    number = F.coalesce("attempt", F.lit(1))
    return Fact(
        "attempts",
        lambda: F.collect_set(F.when(F.col("event") == event.DELIVERED, number)),
        lambda: F.array_distinct(F.flatten(F.collect_set("attempts"))),
    )


def reason() -> Fact:
    """Why it left its queue without an acknowledgement, or its publisher; one of them, if there are several."""
    from pyspark.sql import functions as F

    ends = [event.EXPIRED, event.DEAD_LETTERED, event.DROPPED, event.REJECTED, event.RETURNED, event.NACKED]
    given = F.when(F.col("event").isin(ends), F.col("reason"))
    return Fact("reason", lambda: F.min(given), lambda: F.min("reason"))


def streamed() -> Fact:
    """Whether the queue is a stream: its readers get what others have read, and acknowledge only to get more."""
    from pyspark.sql import functions as F

    return Fact("stream", lambda: F.bool_or("stream"), lambda: F.bool_or("stream"))


def latest(of: str, name: str) -> Fact:
    from pyspark.sql import functions as F

    return Fact(name, lambda: F.max(of), lambda: F.max(name))
