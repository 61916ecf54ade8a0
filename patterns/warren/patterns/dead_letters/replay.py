"""Replaying and discarding dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from warren.patterns.dead_letters.parked_message import ParkedMessage
from warren.patterns.dead_letters.parking_lot import ParkingLot
from warren.patterns.dead_letters.selection import DeadLetterSelection
from warren.sdk import App, WarrenError
from warren.sdk.extend import (
    ATTEMPT,
    DEAD_ERROR,
    DEAD_FIRST_TIME,
    DEAD_QUEUE,
    DEAD_REASON,
    DEAD_TIME,
    DEATHS,
    ORIGIN_EXCHANGE,
    ORIGIN_KEY,
)

REPLAYED: Final = "warren-replayed"
"""The header of what was replayed: how often."""
IN_FLIGHT: Final = 100

Progress = Callable[[int], object]


@dataclass(slots=True)
class SelectionResult:
    """What became of a parking lot.

    :ivar read: letters that were looked at.
    :ivar matched: those that were meant.
    :ivar done: those that were replayed or discarded; none on a dry run.
    :ivar failed: those that could not be replayed, each with why; they are where they were.
    """

    read: int = 0
    matched: int = 0
    done: int = 0
    failed: list[tuple[ParkedMessage, WarrenError]] = field(default_factory=list)


async def find(
    lot: ParkingLot, which: DeadLetterSelection | None = None, *, limit: int | None = None
) -> list[ParkedMessage]:
    """Return the selected letters, the oldest first; they stay in the parking lot.

    :param limit: largest number of letters to return
    """
    return [letter async for letter in _chosen(lot, which, SelectionResult(), limit, None)]


async def replay(
    lot: ParkingLot,
    app: App,
    which: DeadLetterSelection | None = None,
    *,
    rate: float | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    to_queue: bool = False,
    progress: Progress | None = None,
) -> SelectionResult:
    """Publish letters again where they were published first, and take out each that the broker has.

    The copy has the same id, body and headers, `warren-replayed` counts how often, and its attempts count anew. An event
    that goes to its exchange reaches all of its queues again, also those that had handled it: let them use `Once`, or
    replay to the queue alone.

    :param rate: so many a second at most.
    :param limit: so many at most.
    :param dry_run: change nothing; `matched` says how many it would be.
    :param to_queue: to the queue where it died, past the exchange.
    :param progress: called with how many letters have been looked at.
    """
    settled = SelectionResult()
    room = asyncio.Semaphore(IN_FLIGHT)

    async def again(letter: ParkedMessage) -> None:
        try:
            await _publish(app, letter, to_queue)
            lot.take_out(letter)
            settled.done += 1
        except WarrenError as error:
            settled.failed.append((letter, error))
        finally:
            room.release()

    publishing: set[asyncio.Task[None]] = set()
    try:
        async for letter in _chosen(lot, which, settled, limit, progress):
            if not dry_run:
                await room.acquire()
                task = asyncio.create_task(again(letter))
                publishing.add(task)
                task.add_done_callback(publishing.discard)
                await _pace(rate)
    finally:
        # Also when this is cancelled: what the broker has is taken out, so that it is not there twice.
        await asyncio.gather(*publishing)
    return settled


async def discard(
    lot: ParkingLot,
    which: DeadLetterSelection | None = None,
    *,
    rate: float | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> SelectionResult:
    """Take letters out for good; parameters as for `replay`."""
    settled = SelectionResult()
    async for letter in _chosen(lot, which, settled, limit, progress):
        if not dry_run:
            lot.take_out(letter)
            settled.done += 1
            await _pace(rate)
    return settled


async def _chosen(
    lot: ParkingLot,
    which: DeadLetterSelection | None,
    settled: SelectionResult,
    limit: int | None,
    progress: Progress | None,
) -> AsyncIterator[ParkedMessage]:
    now = datetime.now(UTC)
    which = which or DeadLetterSelection()
    async for letter in lot:
        settled.read += 1
        if progress is not None:
            progress(settled.read)
        if which(letter, now):
            settled.matched += 1
            yield letter
            if settled.matched == limit:
                return


async def _publish(app: App, letter: ParkedMessage, to_queue: bool) -> None:
    delivery = letter.delivery
    replayed = delivery.headers.get(REPLAYED)
    first = letter.first_death
    headers: dict[str, Any] = {
        REPLAYED: replayed + 1 if isinstance(replayed, int) else 1,
        DEATHS: letter.deaths or None,
        DEAD_FIRST_TIME: None if first is None else int(first.timestamp() * 1000),
        ORIGIN_EXCHANGE: letter.exchange,
        ORIGIN_KEY: letter.key,
        **dict.fromkeys((DEAD_REASON, DEAD_ERROR, DEAD_QUEUE, DEAD_TIME, ATTEMPT)),
    }
    exchange, key = ("", letter.queue) if to_queue and letter.queue else (letter.exchange, letter.key)
    await app.forward(delivery, exchange=exchange, key=key, headers=headers)


async def _pace(rate: float | None) -> None:
    if rate is not None:
        await asyncio.sleep(1 / rate)


__all__ = ["REPLAYED", "SelectionResult", "discard", "find", "replay"]
