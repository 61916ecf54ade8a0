"""The outcome of each order as a stream: a row once it has been quiet for a while, another one when more is said.

The state of an order is the fold of its facts (`facts`) and what has been told of it. Time is that of the batch, which is
part of Spark's log: a batch that is done again after a crash comes out the same. Event time would not do, twice over: a
watermark does not move while no message comes, so the last orders would never be told, and what is behind it is dropped.
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
"""Times are microseconds since 1970: a timestamp in a Python worker would be in that machine's zone."""


def settled(facts: DataFrame, timeout: timedelta, settle: timedelta, remember: timedelta) -> DataFrame:
    """Rows of orders, each the fold of all that has been said of one so far.

    :param timeout: an order that was placed is told of as open after this time and `settle`
    :param settle: how long nothing new must have been said of an order that is decided
    :param remember: how long an order that was told of is kept, for corrections
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
    """What has been said of an order, and what has been told.

    :param revision: rows told so far
    :param due: when the next one is, in milliseconds since 1970; 0 if none is
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
        """With what one more fact says."""
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
        return self.paid or self.cancelled or self.refunded

    def row(self, order_id: str, now: int) -> Row:
        emitted = {name: getattr(self, name) for name in (*TIMES, *FLAGS, "revision")}
        return Row(order_id=order_id, **emitted, settled_at=now)

    def as_state(self) -> tuple[Any, ...]:
        return tuple(vars(self).values())


class OutcomeProcessor(StatefulProcessor):
    """Tells of an order when it has settled. It is pickled to the executors: plain values only."""

    def __init__(self, timeout: int, settle: int, remember: int) -> None:
        self._timeout = timeout
        self._settle = settle
        # What is awaited must not be forgotten before it is due.
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
        emitted = replace(state, revision=state.revision + 1, due=0)
        self._store(emitted)
        return emitted.row(key[0], now)

    def _load(self) -> OrderState:
        state = self._state.get()
        return OrderState() if state is None else OrderState(*state)

    def _store(self, state: OrderState) -> None:
        self._state.update(state.as_state())


def earliest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def milliseconds(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)
