"""Replaying and discarding dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from warren.patterns.dead_letters.parked_message import ParkedMessage
from warren.patterns.dead_letters.parking_lot import ParkingLot
from warren.patterns.dead_letters.selection import DeadLetterSelection
from warren.sdk import App, Delivery, WarrenError
from warren.sdk.extend import (
    ATTEMPT,
    DEAD_ERROR,
    DEAD_FIRST_TIME,
    DEAD_QUEUE,
    DEAD_REASON,
    DEAD_TIME,
    DEADLINE,
    DEATHS,
    ORIGIN_EXCHANGE,
    ORIGIN_KEY,
    check_number,
    check_whole_number,
    count_in,
)

REPLAYED: Final = "warren-replayed"
"""Header of a replayed message: number of times that it has been replayed."""
IN_FLIGHT: Final = 100

Progress = Callable[[int], object]


@dataclass(slots=True)
class SelectionResult:
    """Result of replaying or discarding the selected dead letters.

    :ivar read: number of messages that were read.
    :ivar matched: number of messages that matched the selection.
    :ivar done: number of messages that were replayed or discarded; 0 in a dry run.
    :ivar failed: messages that could not be replayed, each with its error; they are still in the dead letter queue.
    """

    read: int = 0
    matched: int = 0
    done: int = 0
    failed: list[tuple[ParkedMessage, WarrenError]] = field(default_factory=list)


async def find(
    lot: ParkingLot, selection: DeadLetterSelection | None = None, *, limit: int | None = None
) -> list[ParkedMessage]:
    """Return the selected messages, the oldest first, without removing them from the dead letter queue.

    :param selection: conditions that a message must fulfil; None selects every message.
    :param limit: largest number of messages to return.
    """
    return [message async for message in find_each(lot, selection, limit=limit)]


def find_each(
    lot: ParkingLot,
    selection: DeadLetterSelection | None = None,
    *,
    limit: int | None = None,
    progress: Progress | None = None,
) -> AsyncIterator[ParkedMessage]:
    """Iterate over the selected messages, the oldest first, without holding them in memory or removing them.

    :param selection: conditions that a message must fulfil; None selects every message.
    :param limit: largest number of messages to return.
    :param progress: called with the number of messages read so far.
    """
    return _selected(lot, selection, SelectionResult(), limit, progress)


async def replay(
    lot: ParkingLot,
    app: App,
    selection: DeadLetterSelection | None = None,
    *,
    rate: float | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    to_exchange: bool = False,
    progress: Progress | None = None,
) -> SelectionResult:
    """Publish the selected messages again to the queues in which they died, and remove each one that the broker has
    confirmed.

    The new message has the same id, body and headers. The header `warren-replayed` counts the replays, and the number
    of attempts starts from 1 again. A message whose headers name no queue goes to its exchange. If the queue does not
    exist any more, the message stays, and is among `failed` of the result.

    :param app: App that publishes the messages.
    :param selection: conditions that a message must fulfil to be replayed; None replays every message.
    :param rate: largest number of messages per second, above 0; None for no limit.
    :param limit: largest number of messages to replay, at least 1; None for no limit.
    :param dry_run: change nothing; `matched` in the result is the number of messages that would be replayed.
    :param to_exchange: publish to the exchange and the routing key of the first publish instead. An event reaches all
        queues again, including those that had handled it: protect their handlers with `Once`. Keys in the headers CC
        and BCC do not count.
    :param progress: called with the number of messages read so far.
    """
    _check_rate(rate)
    result = SelectionResult()
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def replay_one(message: ParkedMessage) -> None:
        try:
            await publish_again(app, message, to_exchange)
            lot.remove(message)
            result.done += 1
        except WarrenError as error:
            result.failed.append((message, error))
        finally:
            slots.release()

    publishing: set[asyncio.Task[None]] = set()
    try:
        async for message in _selected(lot, selection, result, limit, progress):
            if not dry_run:
                await slots.acquire()
                task = asyncio.create_task(replay_one(message))
                publishing.add(task)
                task.add_done_callback(publishing.discard)
                await _pace(rate)
    finally:
        # Also on cancellation: a message that the broker has is removed, so that it does not exist twice.
        await asyncio.gather(*publishing)
    return result


async def discard(
    lot: ParkingLot,
    selection: DeadLetterSelection | None = None,
    *,
    rate: float | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> SelectionResult:
    """Delete the selected messages from the dead letter queue, and return how many were read, matched and deleted.

    :param selection: conditions that a message must fulfil to be deleted; None deletes every message.
    :param rate: largest number of messages per second, above 0; None for no limit.
    :param limit: largest number of messages to delete, at least 1; None for no limit.
    :param dry_run: delete nothing; `matched` in the result is the number of messages that would be deleted.
    :param progress: called with the number of messages read so far.
    """
    _check_rate(rate)
    result = SelectionResult()
    async for message in _selected(lot, selection, result, limit, progress):
        if not dry_run:
            lot.remove(message)
            result.done += 1
            await _pace(rate)
    return result


async def _selected(
    lot: ParkingLot,
    selection: DeadLetterSelection | None,
    result: SelectionResult,
    limit: int | None,
    progress: Progress | None,
) -> AsyncIterator[ParkedMessage]:
    if limit is not None:
        check_whole_number("limit", limit)
    now = datetime.now(UTC)
    selection = selection or DeadLetterSelection()
    async for message in lot:
        result.read += 1
        if progress is not None:
            progress(result.read)
        if selection(message, now):
            result.matched += 1
            yield message
            if result.matched == limit:
                return


async def publish_again(
    app: App,
    message: ParkedMessage,
    to_exchange: bool,
    *,
    delivery: Delivery | None = None,
    headers: Mapping[str, Any] | None = None,
) -> None:
    """Publish a dead letter to the queue in which it died; return when the broker has confirmed it.

    A request is handled although the deadline of its caller has passed.

    :param to_exchange: publish it to its original exchange and routing key instead.
    :param delivery: message to publish instead; None for the one that was read.
    :param headers: further headers to set; a value of None removes the header.
    """
    delivery = delivery or message.delivery
    replayed = count_in(message.delivery.readable_headers.get(REPLAYED), 0)
    first = message.first_death
    changed: dict[str, Any] = {
        **(headers or {}),
        REPLAYED: replayed + 1,
        DEATHS: message.deaths or None,
        DEAD_FIRST_TIME: None if first is None else int(first.timestamp() * 1000),
        ORIGIN_EXCHANGE: message.exchange,
        ORIGIN_KEY: message.key,
        **dict.fromkeys((DEAD_REASON, DEAD_ERROR, DEAD_QUEUE, DEAD_TIME, ATTEMPT, DEADLINE)),
    }
    exchange, key = (
        (message.exchange, message.key) if to_exchange or not message.queue else ("", message.queue)
    )
    await app.forward(delivery, exchange=exchange, key=key, headers=changed)


def _check_rate(rate: float | None) -> None:
    if rate is not None:
        check_number("rate", rate, above=True)


async def _pace(rate: float | None) -> None:
    if rate is not None:
        await asyncio.sleep(1 / rate)


__all__ = ["REPLAYED", "SelectionResult", "discard", "find", "find_each", "publish_again", "replay"]
