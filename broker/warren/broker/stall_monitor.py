"""Stall monitor: detects turns of the event loop that keep all clients waiting, and logs what the loop was doing."""

from __future__ import annotations

import gc
import logging
import math
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from warren.broker.connection.turn_clock import TurnClock
from warren.core.operating_system.portable_switch import present

logger: logging.Logger = logging.getLogger(__name__)

ENDLESS_SECONDS: Final = 5.0
"""Seconds after which a turn is logged although it has not ended."""
SUSPENDED_SECONDS: Final = 1.0
"""Seconds from which on it is logged that the process did not run."""
QUIET_SECONDS: Final = 10.0
"""Seconds after a logged stall in which only stalls of twice its length are logged; the others are counted."""
FRAMES: Final = 6
"""Most functions of a sampled stack that are logged, the innermost first."""
OWN_FOLDER: Final = str(Path(__file__).parents[1])
"""Folder of Warren's modules: functions of other modules are left out of the logged stack."""


# Linux has both; only the event loop of `warren broker` on Linux is measured.
_thread_clock: Final[Any] = present("time", "pthread_getcpuclockid")
_read_clock: Final[Any] = present("time", "clock_gettime")


class ProcessTimes(NamedTuple):
    """Processor time of the loop's thread and of the process, and the watches, at some moment."""

    thread: float
    """Seconds that the loop's thread has run."""
    process: float
    """Seconds that all threads of the process have run."""
    watches: int
    """Times that the monitor's thread has looked at the loop."""


class StallMonitor:
    """Monitor of the event loop's turns: counts those that take too long, and logs them with their cause.

    The loop measures its turns itself (`TurnClock`). A thread looks at it twice per threshold; while a turn takes too
    long it samples the stack of the loop's thread. Compiled code has no frames in it, so the log also has the method
    that was being processed, which the loop notes. A turn during which the process did not run at all, because it was
    stopped or the machine was suspended, is no stall: it is logged as such, and not counted.

    :param turns: the clock of the loop's turns.
    :param threshold: milliseconds from which on a turn counts as a stall; 0 turns the monitor off.
    """

    def __init__(self, turns: TurnClock, threshold: int) -> None:
        self.threshold = threshold
        """Milliseconds from which on a turn counts as a stall; 0 if the monitor is off."""
        self.stalls = 0
        """Stalls since the start."""
        self.stalled_seconds = 0.0
        """Sum of the stalls' durations, in seconds."""
        self.longest_stall = 0.0
        """Duration of the longest stall, in seconds."""
        self._turns = turns
        self._seconds = threshold / 1000
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._clock_id = 0
        self._loop_thread = 0
        self._watches = 0
        self._last = self._before = ProcessTimes(0.0, 0.0, 0)
        self._watched_turn = -1
        self._sample = ""
        self._sampled_input = ""
        self._sampled_turn = -1
        self._collected_turn = -1
        self._collection = ""
        self._collection_seconds = 0.0
        self._collection_started = 0.0
        self._logged_at = -math.inf
        self._logged_seconds = 0.0
        self._unlogged = 0

    @property
    def longest_turn(self) -> float:
        """Duration of the longest turn since the start, in seconds, whether it counted as a stall or not."""
        return self._turns.longest

    def start(self) -> None:
        """Start to measure. The calling thread is the loop's."""
        self._turns.reset(self._seconds or math.inf, self._on_stall if self.threshold else None)
        if not self.threshold:
            return
        self._loop_thread = threading.get_ident()
        self._clock_id = _thread_clock(self._loop_thread)
        self._last = self._before = self._times()
        gc.callbacks.append(self._on_collection)
        self._thread = threading.Thread(target=self._watch, name="warren-stall-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop to measure, and wait for the monitor's thread to end."""
        self._turns.reset(math.inf, None)
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            gc.callbacks.remove(self._on_collection)

    # -- the monitor's thread

    def _times(self) -> ProcessTimes:
        return ProcessTimes(_read_clock(self._clock_id), time.process_time(), self._watches)

    def _watch(self) -> None:
        """Look at the loop until the monitor stops."""
        next_sample = 0.0
        endless = False
        while not self._ended.wait(self._seconds / 2):
            self._watches += 1
            turns = self._turns
            number = int(turns.number)
            if turns.polling or number != self._watched_turn:
                # The turn began after the last look.
                self._before = self._last
                self._watched_turn = number
                self._last = self._times()
                next_sample = self._seconds / 2
                endless = False
                continue
            self._last = self._times()
            took = time.monotonic() - turns.started
            if took >= next_sample:
                # Ever more rarely, so that the last sample lies in the second half of the turn.
                next_sample = 2 * took
                self._sample = self._describe_stack()
                self._sampled_input = turns.describe_input()
                self._sampled_turn = number
                if took >= ENDLESS_SECONDS and not endless:
                    endless = True
                    logger.warning(
                        "event=broker.loop_blocked ms=%d cpu_ms=%d doing=%r",
                        took * 1000,
                        (self._last.thread - self._before.thread) * 1000,
                        self._doing(number),
                    )

    def _describe_stack(self) -> str:
        """Return the functions of Warren that the loop's thread is in, the innermost first."""
        frame: FrameType | None = sys._current_frames().get(self._loop_thread)
        names: list[str] = []
        while frame is not None and len(names) < FRAMES:
            code = frame.f_code
            if code.co_filename.startswith(OWN_FOLDER) and not code.co_filename.endswith("event_loop.py"):
                names.append(f"{Path(code.co_filename).stem}.{code.co_name}:{frame.f_lineno}")
            frame = frame.f_back
        return " < ".join(names)

    # -- the loop's thread

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Note the longest garbage collection of a turn: it stops all threads."""
        if phase == "start":
            self._collection_started = time.monotonic()
            return
        took = time.monotonic() - self._collection_started
        number = int(self._turns.number)
        if took >= self._seconds / 2 and (number != self._collected_turn or took > self._collection_seconds):
            self._collected_turn = number
            self._collection_seconds = took
            self._collection = (
                f"garbage collection of generation {info['generation']} for {took * 1000:.0f} ms"
            )

    def _doing(self, number: int) -> str:
        """Return what the loop did, or does, in a turn: input that it processed, collections, and functions."""
        turns = self._turns
        sampled = self._sampled_turn == number
        work = turns.slowest_work if turns.slowest_read else ""
        causes = [
            # Which method it was is known best while it runs: further ones may follow in the same input.
            (self._sampled_input if sampled else "") or work,
            self._collection if self._collected_turn == number else "",
            self._sample if sampled else "",
        ]
        return "; ".join(cause for cause in causes if cause) or "a callback of compiled code"

    def _on_stall(self, took: float) -> None:
        """Count a turn that took at least the threshold, and log it.

        :param took: seconds that it took.
        """
        number = int(self._turns.number)
        before = self._before if self._watched_turn == number else self._last
        now = self._times()
        cpu = min(took, now.thread - before.thread)
        watched = (now.watches - before.watches) * self._seconds / 2
        if now.process - before.process < took / 2 and watched < took / 2:
            # Neither this thread nor the monitor's ran: the process was stopped, or others took the processors.
            if took >= SUSPENDED_SECONDS:
                logger.info("event=broker.process_suspended ms=%d cpu_ms=%d", took * 1000, cpu * 1000)
            return
        self.stalls += 1
        self.stalled_seconds += took
        self.longest_stall = max(self.longest_stall, took)
        ended = time.monotonic()
        if ended - self._logged_at < QUIET_SECONDS and took < 2 * self._logged_seconds:
            self._unlogged += 1
            return
        logger.warning(
            "event=broker.loop_stalled ms=%d cpu_ms=%d doing=%r unlogged=%d",
            took * 1000,
            cpu * 1000,
            self._doing(number),
            self._unlogged,
        )
        self._logged_at, self._logged_seconds, self._unlogged = ended, took, 0
