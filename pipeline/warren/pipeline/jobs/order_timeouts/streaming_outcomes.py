"""Outcomes of orders as a stream: a row when no new message about an order has arrived for some time, and another one
when later messages change the order.

Spark keeps a state for each order: its merged facts, and the number of rows emitted. Timers use the time of the
micro-batch, which is part of Spark's log, so a batch that is repeated after a crash has the same result. Event time is
unsuitable for two reasons. A watermark does not advance without messages, so the last orders would never be emitted;
and rows behind the watermark are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from warren.pipeline.jobs.order_timeouts.facts import FLAGS, TIMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FACTS = ", ".join([*(f"{time} LONG" for time in TIMES), *(f"{flag} BOOLEAN" for flag in FLAGS)])
STATE = f"{FACTS}, revision INT, due LONG"
OUTPUT_SCHEMA = f"order_id STRING, {FACTS}, revision INT, settled_at LONG"
"""Columns of the emitted rows. Times are microseconds since 1970, because a Python worker would convert a timestamp to
its machine's zone."""


def settled(facts: DataFrame, timeout: timedelta, settle: timedelta, remember: timedelta) -> DataFrame:
    """Return a streaming frame of orders, each row with all facts about the order so far: placed, paid, cancelled,
    refunded.

    An order's row is emitted when no new fact has arrived for some time. Later facts lead to another row of the order.

    :param timeout: payment timeout; an order that is placed, and neither paid nor cancelled, is emitted as undecided
        after this time plus `settle`
    :param settle: time without a new fact after which a paid, cancelled or refunded order is emitted
    :param remember: time for which an emitted order is kept for corrections
    """
    numbers = facts.select("order_id", *[F.unix_micros(time).alias(time) for time in TIMES], *FLAGS)
    rows = numbers.groupBy("order_id").transformWithState(
        statefulProcessor=OutcomeProcessor(
            milliseconds(timeout), milliseconds(settle), milliseconds(remember)
        ),
        outputStructType=OUTPUT_SCHEMA,
        outputMode="append",
        timeMode="processingTime",
    )
    return rows.select(
        "order_id",
        *[F.timestamp_micros(time).alias(time) for time in TIMES],
        *FLAGS,
        "revision",
        F.timestamp_millis("settled_at").alias("settled_at"),
    )


@dataclass(frozen=True)
class OrderState:
    """State of one order in Spark's state store: its merged facts (placed, paid, cancelled, refunded), and the time at
    which its next row is to be emitted.

    :param revision: number of rows emitted so far
    :param due: time at which the next row is to be emitted, in milliseconds since 1970; 0 if none is to be emitted
    """

    placed_at: int | None = None
    paid_at: int | None = None
    placed: bool = False
    paid: bool = False
    cancelled: bool = False
    refunded: bool = False
    revision: int = 0
    due: int = 0

    def with_fact(self, row: Row) -> OrderState:
        """Return the state merged with one more fact: that the order was placed, paid, cancelled or refunded.

        :param row: row of a message with its times and flags, from `facts.facts_of`
        """
        return replace(
            self,
            placed_at=earliest(self.placed_at, row.placed_at),
            paid_at=earliest(self.paid_at, row.paid_at),
            placed=self.placed or row.placed,
            paid=self.paid or row.paid,
            cancelled=self.cancelled or row.cancelled,
            refunded=self.refunded or row.refunded,
        )

    @property
    def decided(self) -> bool:
        """True if the order was paid, cancelled or refunded."""
        return self.paid or self.cancelled or self.refunded

    def row(self, order_id: str, now: int) -> Row:
        """Return the row to emit for the order: its id, times, facts (flags), and number of rows so far (`revision`).

        :param now: time of the row, in milliseconds since 1970
        """
        emitted = {name: getattr(self, name) for name in (*TIMES, *FLAGS, "revision")}
        return Row(order_id=order_id, **emitted, settled_at=now)

    def as_state(self) -> tuple[Any, ...]:
        """Return the values of all fields, in the order in which they are declared, for Spark's state store."""
        return tuple(vars(self).values())


class OutcomeProcessor(StatefulProcessor):
    """Stateful processor that emits one row for each order, with its outcome: paid in time, paid late or cancelled.

    A row is emitted `settle` milliseconds after the last message that changed what is known about the order; an order
    that is still undecided waits for `timeout` milliseconds more. Repeated messages change nothing. A later change
    emits another row, with a higher revision. Spark pickles the processor to the executors, so it has only plain values.
    """

    def __init__(self, timeout: int, settle: int, remember: int) -> None:
        self._timeout = timeout
        self._settle = settle
        # State with a pending timer must not expire before the timer.
        self._remember = remember + timeout + settle

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("order", STATE, self._remember)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        before = self._load()
        state = before
        for row in rows:
            state = state.with_fact(row)
        if state == before:
            return
        now = timerValues.getCurrentProcessingTimeInMs()
        if before.due:
            self._handle.deleteTimer(before.due)
        due = now + self._settle + (0 if state.decided else self._timeout)
        if due > now:
            self._handle.registerTimer(due)
            self._store(replace(state, due=due))
        else:
            yield self._emit(key, state, now)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        state = self._load()
        if state.due == expiredTimerInfo.getExpiryTimeInMs():
            yield self._emit(key, state, timerValues.getCurrentProcessingTimeInMs())

    def _emit(self, key: Any, state: OrderState, now: int) -> Row:
        """Store that the row of an order was emitted, and return the row.

        :param key: key of the group in Spark: a row with the order's id
        :param now: time of the micro-batch in milliseconds since 1970
        """
        emitted = replace(state, revision=state.revision + 1, due=0)
        self._store(emitted)
        return emitted.row(key[0], now)

    def _load(self) -> OrderState:
        state = self._state.get()
        return OrderState() if state is None else OrderState(*state)

    def _store(self, state: OrderState) -> None:
        self._state.update(state.as_state())


def earliest(one: int | None, other: int | None) -> int | None:
    """Return the earlier of two times; None is an unknown time, and the result if both are unknown."""
    return other if one is None else one if other is None else min(one, other)


def milliseconds(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)
