"""Result types and computation of the job `order-timeouts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from warren.pipeline.jobs.order_timeouts.facts import (
    CONTRADICTIONS,
    OUTCOMES,
    facts_of,
    merged_facts,
    unreadable,
    with_outcome,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUANTILES = (0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99)
EDGES = tuple(
    60 * minutes for minutes in (1, 5, 10, 15, 20, 30, 45, 60, 120, 240, 720, 1440, 2880, 4320, 10_080)
)
"""Edges between the buckets of the histogram of payment delays, in seconds; the timeout is added as one more edge."""

EXAMPLES = 10
TYPES = 20
"""Number of message types that the summary lists. It is limited because publishers choose the types, possibly a new one
for each message."""


@dataclass(frozen=True)
class Options:
    """Options of the job `order-timeouts`.

    :param timeout: timeout after which the workflow cancels an order
    :param recount: other timeouts to compute the outcomes for
    :param settle: in a continuous run, time without a new message after which an order is settled
    :param remember: in a continuous run, time for which a decided order is kept for corrections
    """

    timeout: timedelta
    recount: tuple[timedelta, ...]
    settle: timedelta
    remember: timedelta


@dataclass(frozen=True)
class Messages:
    """Numbers of messages that were read, by type and readability."""

    read: int
    duplicates: int
    """Number of messages whose message id had occurred before."""
    unreadable: int
    """Number of messages of a known type without an order id in a JSON body, or without the time that the type
    requires."""
    of_other_types: int
    """Number of messages that state nothing about an order: their type is unknown or missing."""
    without_type: int
    by_type: dict[str, int]
    """Number of messages of each of the most frequent types."""
    more_types: int


@dataclass(frozen=True)
class Bucket:
    """Bucket of the histogram: number of payments later than `above` seconds after the order and at most `up_to`; None
    is unbounded.
    """

    above: int | None
    up_to: int | None
    count: int


@dataclass(frozen=True)
class Recount:
    """Numbers of orders by the outcome that their times imply under a given timeout; they add up to all orders.

    A payment exactly at the timeout is in time.
    """

    timeout_seconds: int
    paid_in_time: int
    paid_late: int
    never_paid: int
    without_times: int
    """Number of orders without a usable time: never placed, or paid with one of the two times missing or unreadable."""


@dataclass(frozen=True)
class Delay:
    """Distribution of the time from order to payment in seconds, over the orders that have both times."""

    payments: int
    before_order: int
    """Number of payments dated before their order."""
    minimum: float | None
    maximum: float | None
    mean: float | None
    quantiles: dict[str, float]
    """Quantiles in seconds; the keys are levels such as "0.50". Interpolated linearly between neighbours."""
    histogram: tuple[Bucket, ...]


@dataclass(frozen=True)
class Summary:
    """Numbers of orders by outcome. The numbers of the outcomes and of the contradictions (orders whose messages
    contradict each other) add up to `orders`.
    """

    timeout_seconds: int
    messages: Messages
    orders: int
    paid_in_time: int
    paid_late: int
    """Number of orders that were cancelled, and whose payment was refunded because it came too late."""
    cancelled: int
    """Number of orders that were cancelled and never paid."""
    contradictions: dict[str, int]
    undecided: int
    """Number of orders that messages mention and that a continuous run has not written to the table `orders` yet; not
    part of `orders`."""
    decided_otherwise: int
    """Number of orders whose messages say paid in time although the delay exceeds the timeout, or paid late although it
    does not."""
    examples: dict[str, tuple[str, ...]]
    """Some order ids for each contradiction (key of `CONTRADICTIONS`), and of the orders that `decided_otherwise`
    counts."""
    delay: Delay
    recount: tuple[Recount, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summary_of(
    events: DataFrame, rows: DataFrame, timeout: timedelta, other_timeouts: Sequence[timedelta]
) -> Summary:
    """Compute the summary from the written tables.

    :param events: the table `events`, one row for each message
    :param rows: the table `orders`; an order may have several rows, whose facts are merged
    :param timeout: payment timeout that was in effect
    :param other_timeouts: timeouts under which the outcomes are counted again
    """
    orders = with_outcome(merged_facts(rows), timeout)
    timeouts = sorted({timeout, *other_timeouts})
    counted = counts_of(orders, timeout, timeouts)
    known = facts_of(events).select("order_id").distinct().count()
    delay = Delay(
        payments=counted["payments"],
        before_order=counted["before_order"],
        minimum=counted["minimum"],
        maximum=counted["maximum"],
        mean=counted["mean"],
        quantiles={
            f"{level:.2f}": value for level, value in zip(QUANTILES, counted["quantiles"] or (), strict=False)
        },
        histogram=tuple(Bucket(above, up_to, counted[f"above_{above}"]) for above, up_to in buckets(timeout)),
    )
    recount = tuple(
        Recount(
            timeout_seconds=int(each.total_seconds()),
            paid_in_time=counted[f"in_time_{each}"],
            paid_late=counted[f"late_{each}"],
            never_paid=counted["never_paid"],
            without_times=counted["without_times"],
        )
        for each in timeouts
    )
    return Summary(
        timeout_seconds=int(timeout.total_seconds()),
        messages=messages_of(events),
        orders=counted["orders"],
        **{name: counted[name] for name in OUTCOMES},
        contradictions={name: counted[name] for name in CONTRADICTIONS},
        # The orders are read first: an event that is written in between counts as undecided.
        undecided=max(known - counted["orders"], 0),
        decided_otherwise=counted["decided_otherwise"],
        examples=examples_of(orders) if has_oddities(counted) else {},
        delay=delay,
        recount=recount,
    )


def counts_of(orders: DataFrame, timeout: timedelta, timeouts: Sequence[timedelta]) -> dict[str, Any]:
    """Compute all numbers about the orders in one pass: outcomes, delays, and the outcomes that their times imply under
    each timeout.

    :param orders: one row for each order with its delay and outcome, from `facts.with_outcome`
    :param timeout: payment timeout that was in effect
    :param timeouts: payment timeouts under which the orders are counted again
    :return: the numbers by name: `orders`, one for each outcome and contradiction, those of the delay, `never_paid`,
        `without_times`, and `in_time_...` and `late_...` for each timeout
    """
    from pyspark.sql import functions as F

    delay = F.col("delay_seconds")
    never_paid = F.col("placed") & ~F.col("paid")
    numbers = [F.count(F.lit(1)).alias("orders")]
    numbers += [F.count_if(F.col("outcome") == name).alias(name) for name in (*OUTCOMES, *CONTRADICTIONS)]
    numbers += [
        F.count_if("decided_otherwise").alias("decided_otherwise"),
        F.count(delay).alias("payments"),
        F.count_if(delay < 0).alias("before_order"),
        F.min(delay).alias("minimum"),
        F.max(delay).alias("maximum"),
        F.mean(delay).alias("mean"),
        F.percentile(delay, list(QUANTILES)).alias("quantiles"),
        F.count_if(never_paid).alias("never_paid"),
        F.count_if(delay.isNull() & ~never_paid).alias("without_times"),
    ]
    for above, up_to in buckets(timeout):
        over = F.lit(True) if above is None else delay > above
        under = F.lit(True) if up_to is None else delay <= up_to
        numbers.append(F.count_if(delay.isNotNull() & over & under).alias(f"above_{above}"))
    for each in timeouts:
        within = delay <= each.total_seconds()
        numbers += [
            F.count_if(within).alias(f"in_time_{each}"),
            F.count_if(~within).alias(f"late_{each}"),
        ]
    row = orders.agg(*numbers).first()
    assert row is not None
    return row.asDict()


def buckets(timeout: timedelta) -> list[tuple[int | None, int | None]]:
    """Return the lower and upper edges, in seconds, of the buckets of the histogram of delays; None is unbounded.

    The timeout is one of the edges, so each bucket has only payments in time or only late ones.
    """
    edges = sorted({*EDGES, int(timeout.total_seconds())})
    return list(zip([None, *edges], [*edges, None], strict=True))


def messages_of(events: DataFrame) -> Messages:
    """Count the messages that were read: all, duplicates (by message id), unreadable ones, those of types that are not
    about orders, those without a type, and those of each of the most frequent types.

    :param events: one row for each message, as `facts.events_of` returns them
    """
    from pyspark.sql import functions as F

    ids, types = F.col("message_id"), F.col("type")
    row = events.agg(
        F.count(F.lit(1)).alias("read"),
        (F.count(ids) - F.count_distinct(ids)).alias("duplicates"),
        F.count_if(unreadable()).alias("unreadable"),
        F.count_if(F.col("kind").isNull()).alias("of_other_types"),
        F.count_if(types.isNull()).alias("without_type"),
    ).first()
    assert row is not None
    by_type = events.where(types.isNotNull()).groupBy("type").agg(F.count(F.lit(1)).alias("read"))
    most = by_type.orderBy(F.desc("read"), "type").limit(TYPES).collect()
    return Messages(
        **row.asDict(),
        by_type={each["type"]: each["read"] for each in most},
        more_types=by_type.count() - TYPES if len(most) == TYPES else 0,
    )


def has_oddities(counted: dict[str, Any]) -> bool:
    """Return whether any order is in a contradictory state, or has an outcome (paid in time or late) that contradicts
    its times.

    :param counted: number of orders in each contradictory state (key of `CONTRADICTIONS`), and under
        `decided_otherwise` of orders with such an outcome
    """
    return any(counted[name] for name in (*CONTRADICTIONS, "decided_otherwise"))


def examples_of(orders: DataFrame) -> dict[str, tuple[str, ...]]:
    """Return up to `EXAMPLES` order ids, the alphabetically first, for each contradictory state and for outcomes that
    contradict the order's times.

    :param orders: one row for each order, with its `outcome` and `decided_otherwise`
    :return: order ids by state (key of `CONTRADICTIONS`); those of the outcomes are under `decided_otherwise`
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    name = F.when(F.col("outcome").isin(list(CONTRADICTIONS)), F.col("outcome")).when(
        F.col("decided_otherwise"), "decided_otherwise"
    )
    named = orders.select("order_id", name.alias("name")).where(F.col("name").isNotNull())
    place = F.row_number().over(Window.partitionBy("name").orderBy("order_id"))
    found: dict[str, tuple[str, ...]] = {}
    for row in (
        named.withColumn("place", place).where(F.col("place") <= EXAMPLES).orderBy("order_id").collect()
    ):
        found[row["name"]] = (*found.get(row["name"], ()), row["order_id"])
    return found
