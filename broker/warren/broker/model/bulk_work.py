"""Bulk work: work on many messages, queues or bindings at once, done in slices between which clients are served.

One frame, policy, deletion or timer can concern a million messages. Such work is divided by time, not by number, because
the cost of one message differs by a factor of a hundred. Each piece of work belongs to a lane, as a rule the queue or
connection that it is for. Work of one lane is done in order; lanes take turns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Optional, TypeAlias

from warren.broker.model.clock import Clock
from warren.broker.store.log.switch_interval import SWITCH_INTERVAL

logger = logging.getLogger(__name__)

SLICE_SECONDS: Final = 0.003
"""Seconds of bulk work in one iteration of the event loop, before it serves clients."""

PAUSE_SECONDS: Final = 0.002
"""Seconds of real time until it is checked again whether the log has caught up."""

Step: TypeAlias = Callable[[float], bool]
"""Function that does a part of some work, until `time.monotonic()` has reached its argument or the work is finished.

It returns True when the work is finished. It does at least one unit of work for each call, unless it waits for the work
of another lane. It may be called after the object that it works on was deleted.
"""


class Piece:
    """Piece of bulk work.

    :param ended: function that is called once when it ends in any way: finished, or given up because it failed.
    """

    def __init__(self, step: Step, ended: Optional[Callable[[], None]]) -> None:  # noqa: UP045
        self.step = step
        self.ended = ended


class BulkWork:
    """Unfinished bulk work of one broker.

    Each piece of work belongs to a lane: any object, such as the queue or the connection that the work is for. Pieces
    of one lane are done one after the other; lanes take turns, so that none waits for all the work of another.
    """

    def __init__(self, clock: Clock, log_is_behind: Callable[[], bool] = lambda: False) -> None:
        """:param log_is_behind: returns True while so much waits to be written to the log that clients' confirms, which
        wait for it too, would take long. No slices are done meanwhile.
        """
        self.slice_seconds = SLICE_SECONDS
        """Seconds that all bulk work may take in one iteration of the event loop. With 0, one unit of work is done."""
        self.slices = 0
        """Number of iterations of the event loop that have done work which an earlier one had left."""
        self._clock = clock
        self._log_is_behind = log_is_behind
        self._lanes: dict[object, deque[Piece]] = {}
        self._order: deque[object] = deque()
        """Lanes with unfinished work, the next one first."""
        self._slice_end = 0.0
        """End of the current slice, by `time.monotonic()`; 0 while no bulk work is being done."""
        self._scheduled = False
        self._is_switching_often = False
        self._is_closed = False
        self._idle: asyncio.Future[None] | None = None
        """Future that is resolved when no work is left; None unless the broker stops."""

    @property
    def is_idle(self) -> bool:
        """True if no work is unfinished."""
        return not self._lanes

    def is_pending(self, lane: object) -> bool:
        """Return True if a lane has unfinished work."""
        return lane in self._lanes

    def slice_end(self) -> float:
        """Return the time at which work that is done now must end, by `time.monotonic()`.

        In the middle of a slice it is the end of that slice, so that work that causes other work takes no longer.
        """
        return self._slice_end or time.monotonic() + self.slice_seconds

    def run(self, lane: object, step: Step, ended: Optional[Callable[[], None]] = None) -> bool:  # noqa: UP045
        """Do work now if its lane is free, and leave what is not finished in time to the next iterations of the loop.

        Return True if all of it is finished now.

        :param ended: function to call once when this work ends in any way: finished, or given up because `step` failed.
            What the work holds is released there, such as the deliveries of a queue. None if it holds nothing.
        """
        piece = Piece(step, ended)
        if lane in self._lanes:
            self._lanes[lane].append(piece)
            return False
        # In its lane already while it runs, so that work which it causes in the same lane comes after it.
        pieces = self._lanes[lane] = deque([piece])
        outermost = not self._slice_end
        self._slice_end = self.slice_end()
        try:
            self._advance(pieces, self._slice_end)
        finally:
            if outermost:
                self._slice_end = 0.0
        return self._end_turn(lane, pieces)

    def later(self, lane: object, step: Step) -> None:
        """Do work in one of the next iterations of the event loop, after the unfinished work of its lane."""
        pieces = self._lanes.get(lane)
        if pieces is not None:
            pieces.append(Piece(step, None))
            return
        self._lanes[lane] = deque([Piece(step, None)])
        self._order.append(lane)
        self._schedule()

    def after(self, lane: object, call: Callable[[], None]) -> None:
        """Make one call when the work that a lane has now is finished; at once if it has none."""
        if lane not in self._lanes:
            call()
            return

        def step(_: float) -> bool:
            call()
            return True

        self._lanes[lane].append(Piece(step, None))

    async def finished(self, lane: object) -> None:
        """Wait until the work that a lane has now is finished."""
        if lane in self._lanes:
            done = asyncio.get_running_loop().create_future()
            self.after(lane, lambda: None if done.done() else done.set_result(None))
            await done

    async def finish(self, seconds: float) -> None:
        """Wait until all work is finished, because the broker stops; give up what is not finished after `seconds`."""
        if self._lanes:
            self._idle = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(seconds):
                    await self._idle
            except TimeoutError:
                logger.warning("event=bulk_work.abandoned lanes=%d", len(self._lanes))
                self._lanes.clear()
                self._order.clear()
                self._switch_as_usual()

    def close(self) -> None:
        """Give up what is not finished, because the event loop may end: it could not be done any more."""
        self._is_closed = True
        self._lanes.clear()
        self._order.clear()
        self._switch_as_usual()

    def _schedule(self) -> None:
        if self._is_closed:
            return
        if not self._is_switching_often:
            self._is_switching_often = True
            SWITCH_INTERVAL.shorten()
        if not self._scheduled:
            self._scheduled = True
            # A virtual clock counts the call as work in progress.
            self._clock.call_at(self._clock.now(), self._run_slice)

    def _run_slice(self) -> None:
        """Let the lanes take turns until the slice is over. Each has at most one turn."""
        self._scheduled = False
        if not self._lanes:
            return
        if self._log_is_behind():
            # By real time, also in a test with a virtual clock: the log is written by a thread.
            self._scheduled = True
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._run_slice)
            return
        self.slices += 1
        end = self._slice_end = time.monotonic() + self.slice_seconds
        try:
            for _ in range(len(self._order)):
                lane = self._order.popleft()
                pieces = self._lanes[lane]
                self._advance(pieces, end)
                self._end_turn(lane, pieces)
                if time.monotonic() >= end:
                    break
        finally:
            self._slice_end = 0.0
            if self._order:
                self._schedule()

    def _advance(self, pieces: deque[Piece], end: float) -> None:
        """Do the work of a lane, in order, until a time. Work that fails is logged and given up."""
        while pieces:
            piece = pieces[0]
            try:
                finished = piece.step(end)
            except Exception:
                logger.exception("event=bulk_work.failed")
                finished = True
            if finished:
                pieces.popleft()
                self._end_piece(piece)
            if not finished or time.monotonic() >= end:
                break

    def _end_piece(self, piece: Piece) -> None:
        """Call the function that releases what a piece of work has held."""
        ended = piece.ended
        if ended is not None:
            try:
                ended()
            except Exception:
                logger.exception("event=bulk_work.failed")

    def _end_turn(self, lane: object, pieces: deque[Piece]) -> bool:
        """Put a lane behind the others if it has work left; return True if it has none."""
        if pieces:
            self._order.append(lane)
            self._schedule()
            return False
        del self._lanes[lane]
        if not self._lanes:
            self._switch_as_usual()
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)
        return True

    def _switch_as_usual(self) -> None:
        if self._is_switching_often:
            self._is_switching_often = False
            SWITCH_INTERVAL.restore()


__all__ = ["SLICE_SECONDS", "BulkWork"]
