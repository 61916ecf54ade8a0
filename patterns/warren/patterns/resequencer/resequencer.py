"""Resequencer: messages that carry a number are handled in the order of their numbers, in whatever order they come.

Guarantees: for each key, number after number, one at a time; keys do not wait for each other. A message that comes before
its turn waits unacknowledged, so that a crash gives it back to the queue; which number is next stands in a store, so that
it is known after a restart, and a number that comes again is not handled again. Of several processes that run the same
resequencer one gets the messages, and another takes over when it is gone (single active consumer); what waits in a process
that has lost its connection is let go, and how far a key has come is read anew. A handler that runs meanwhile runs to its
end, while its message comes again elsewhere. At most `window` messages wait in memory; what does not fit waits in a queue
and comes again.

A number that is missing is given up after `gap_timeout`: what waits goes on without it, counted and logged, and if it comes
after all it is dead-lettered. That holds for a message that its handler could not handle, too.

Costs: one decision of the store a message, one more where a key is new to the process or the message comes again, two more
for one that waits; and as many idle tasks as the window.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Final, ParamSpec

from warren.patterns.delay import wait_queue
from warren.patterns.resequencer.rules import Line, Place, advance, read
from warren.patterns.resequencer.sequence_numbers import SEQUENCE, SEQUENCE_KEY
from warren.patterns.stores import RuleResult, Store, apply_rule_with_retry, record_key
from warren.sdk import (
    App,
    Clock,
    Command,
    ConfigError,
    DeadLetter,
    Delivery,
    Queue,
    Requeue,
    State,
    SystemClock,
    current_delivery,
)

log: logging.Logger = logging.getLogger("warren.patterns")

KNOWN: Final = 10_000
FOREVER: Final = 1e9

Parameters = ParamSpec("Parameters")


@dataclass(slots=True)
class ResequencerStatistics:
    """What this process has done; `waiting` are the messages that wait for their turn now."""

    handled: int = 0
    waiting: int = 0
    waited: int = 0
    """Messages that came before their turn."""
    repeated: int = 0
    """Messages whose number had been handled; acknowledged."""
    gaps: int = 0
    """How often something was given up."""
    late: int = 0
    """Messages that came after they had been given up; dead-lettered."""
    put_aside: int = 0
    """Messages that found the window full."""


class Resequencer:
    """`@resequencer.handle(OrderChanged)`, then `app.include(resequencer)`.

    :param queue: where the messages come; it has a single active consumer. A Command names the same one:
        `class OrderStep(Command, queue=Queue("steps", single_active_consumer=True))`.
    :param store: where it stands which number is next: `RedisStore`, `PostgresStore`, `SqliteStore`.
    :param key: from the message to what its number is counted for; by default the header `warren-sequence-key`.
    :param number: from the message to its number; by default the header `warren-sequence`. `SequenceNumbers` gives both headers.
    :param first: the number that a key begins with; None takes whatever comes first. Default 1.
    :param gap_timeout: how long messages wait for one that is missing; None waits for ever. Default 1 minute.
    :param window: how many messages may wait in memory. Default 100.
    :param again_after: when a message comes again that found the window full. Default 1 s.
    :param concurrency: handlers at a time, of different keys. Default 10.
    :param keep: how long a key is remembered after its last message. Default 7 days.
    :param patience: how long a message waits for a store that fails. Default 1 minute.
    :raises ConfigError: a number or duration is too small.
    """

    def __init__(
        self,
        queue: str,
        *,
        store: Store,
        key: Callable[[Any], str] | None = None,
        number: Callable[[Any], int] | None = None,
        first: int | None = 1,
        gap_timeout: timedelta | None = timedelta(minutes=1),
        window: int = 100,
        again_after: timedelta = timedelta(seconds=1),
        concurrency: int = 10,
        keep: timedelta = timedelta(days=7),
        patience: timedelta = timedelta(minutes=1),
    ) -> None:
        if window < 1 or concurrency < 1:
            raise ConfigError(
                f"Resequencer {queue}: window ({window}) and concurrency ({concurrency}) are at least 1"
            )
        if min(again_after, keep) < timedelta(milliseconds=1) or (gap_timeout or keep) <= again_after:
            raise ConfigError(
                f"Resequencer {queue}: again_after ({again_after}) is at least a millisecond and shorter than gap_timeout"
            )
        self.queue: Queue = Queue(queue, single_active_consumer=True)
        self.statistics: ResequencerStatistics = ResequencerStatistics()
        self._store = store
        self._key = key
        self._number = number
        self._first = first
        self._gap = None if gap_timeout is None else gap_timeout.total_seconds()
        self._window = window
        self._again_after = again_after
        self._concurrency = concurrency
        self._keep_ms = keep // timedelta(milliseconds=1)
        self._patience = patience.total_seconds()
        self._running = asyncio.Semaphore(concurrency)
        self._lines: OrderedDict[str, Line] = OrderedDict()
        self._handlers: list[tuple[Any, Callable[..., Awaitable[None]], Mapping[str, Any]]] = []
        self._closing = False
        self._session = 0
        """Counts lost connections: what was delivered before one is not ours any more."""
        self._app: App | None = None
        self._clock: Clock = SystemClock()

    def handle(
        self, message: Any, **options: Any
    ) -> Callable[[Callable[Parameters, Awaitable[None]]], Callable[Parameters, Awaitable[None]]]:
        """Decorate the handler of a message, as `app.handle` does.

        :param message: as for `app.handle`; several have one order.
        :param options: `keys=`, `retry=` and the like, as for `app.handle`.
        """

        def register(
            function: Callable[Parameters, Awaitable[None]],
        ) -> Callable[Parameters, Awaitable[None]]:
            self._handlers.append((message, function, options))
            return function

        return register

    def register(self, app: App) -> None:
        if not self._handlers:
            raise ConfigError(
                f"the Resequencer of {self.queue.name} handles nothing: @resequencer.handle(...)"
            )
        self._app = app
        self._clock = app.clock
        app.on_state(self._app_is)
        app.declare(self.queue, wait_queue(self.queue.name, self._again_after))
        for message, function, options in self._handlers:
            # As many as may wait, and as many as may run: the one that all wait for must find a place.
            concurrency = self._window + self._concurrency
            app.handle(message, queue=self._source(message), concurrency=concurrency, **options)(
                self._in_turn(function)
            )

    async def on_start(self) -> None:
        """Forget what was known of keys: another process may have gone on meanwhile."""
        self._running = asyncio.Semaphore(self._concurrency)
        self._lines.clear()

    async def on_stop(self) -> None:
        """Close the store; the next use opens it again."""
        await self._store.close()

    def _source(self, message: Any) -> Queue | None:
        """Where `app.handle` takes it from; a Command says it itself."""
        if not (isinstance(message, type) and issubclass(message, Command)):
            return self.queue
        if message.queue_value != self.queue:
            raise ConfigError(
                f"{message.__name__} must come through the resequencer's queue: class {message.__name__}(Command,"
                f" queue=Queue({self.queue.name!r}, single_active_consumer=True))"
            )
        return None

    def _in_turn(self, function: Callable[..., Awaitable[None]]) -> Callable[..., Coroutine[Any, Any, None]]:
        @wraps(function)
        async def run(message: Any, *arguments: Any, **further: Any) -> None:
            delivery = current_delivery()
            assert delivery is not None
            await self._take(message, delivery, lambda: function(message, *arguments, **further))

        return run

    async def _take(self, message: Any, delivery: Delivery, run: Callable[[], Awaitable[None]]) -> None:
        key, number = self._position(message, delivery)
        session = self._session
        line = await self._line(key, anew=delivery.redelivered)
        line.users += 1
        if line.unknown:
            line.place, line.unknown = Place(number), False
        looked = False
        try:
            while True:
                self._still(session)
                if number < line.place.following:
                    return self._past(line, key, number)
                if number == line.place.following and not line.busy:
                    return await self._run(line, key, number, run, session)
                if not looked:
                    await self._look(line, key)
                    looked = True
                    continue
                full = self._closing or self.statistics.waiting >= self._window
                # Who waits for longest anyway makes room for who comes nearer to his turn.
                if (full and (self._closing or not line.evict_beyond(number))) or not await self._wait(
                    line, key, number
                ):
                    self._still(session)
                    return await self._put_aside(delivery)
                await self._look(line, key)
        finally:
            line.users -= 1

    def _still(self, session: int) -> None:
        """Whether what was delivered in that session is ours.

        :raises Requeue: the connection was lost since, and it comes again, perhaps to another process.
        """
        if session != self._session:
            raise Requeue

    async def _run(
        self, line: Line, key: str, number: int, run: Callable[[], Awaitable[None]], session: int
    ) -> None:
        line.busy = True
        try:
            # If only its record failed, the handler has run and does not run again.
            if line.handled != number:
                async with self._running:
                    self._still(session)
                    await run()
                line.handled = number
                self.statistics.handled += 1
            # Before the next one begins, so that a crash repeats this step and none before it.
            following = replace(line.place, following=number + 1)
            record = await self._decide(key, partial(advance, place=following, keep_ms=self._keep_ms))
            line.move(read(record) or following, self._clock.now(), saved=True)
        finally:
            line.busy = False
            line.wake()

    def _past(self, line: Line, key: str, number: int) -> None:
        if line.place.gave_up(number):
            self.statistics.late += 1
            raise DeadLetter(
                f"number {number} of {key!r} came after it had been given up: number {line.place.following} is next"
            )
        self.statistics.repeated += 1

    async def _wait(self, line: Line, key: str, number: int) -> bool:
        """Until its turn has come, or is over; False if it has to make room.

        If the line stands still for too long, what is missing is given up.
        """
        self.statistics.waiting += 1
        self.statistics.waited += 1
        gap = FOREVER if self._gap is None else self._gap
        turn = line.wait(number, self._clock.now())
        try:
            while not turn.done():
                rest = line.since + gap - self._clock.now()
                if line.stands_still(gap, self._clock.now()):
                    await self._look(line, key)
                    if not turn.done() and line.stands_still(gap, self._clock.now()):
                        self._give_up(line, key)
                    continue
                # It sleeps by the App's clock, as whoever waits for time has to: a test on virtual time lets it pass.
                asleep = asyncio.ensure_future(self._clock.sleep(rest if rest > 0 else gap))
                try:
                    await asyncio.wait((turn, asleep), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    asleep.cancel()
            return turn.result()
        finally:
            line.leave(number, turn)
            self.statistics.waiting -= 1

    def _app_is(self, state: State) -> None:
        """Who waits for his turn does not hold up the end of the App: he comes again, to whoever runs then.

        So does who waits when the connection is lost; another process may be the active one from here on.
        """
        self._closing = state in (State.CLOSING, State.CLOSED)
        if state is State.CONNECTING:
            self._session += 1
            for line in self._lines.values():
                line.forget(Place(self._first or 0))
        if self._closing or state is State.CONNECTING:
            for line in self._lines.values():
                line.evict_all()

    async def _put_aside(self, delivery: Delivery) -> None:
        self.statistics.put_aside += 1
        waiting = wait_queue(self.queue.name, self._again_after)
        await self._included().forward(delivery, key=waiting.name)

    def _give_up(self, line: Line, key: str) -> None:
        missing, found = line.place.following, line.first_waiting()
        self.statistics.gaps += 1
        log.warning(
            "resequencer.gap queue=%s key=%s missing=%d..%d: given up",
            self.queue.name,
            key,
            missing,
            found - 1,
        )
        line.move(line.place.skip_to(found), self._clock.now(), saved=False)
        line.wake()

    async def _line(self, key: str, *, anew: bool) -> Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(Place(self._first or 0))
            self._trim()
        self._lines.move_to_end(key)
        async with line.loading:
            if anew or not line.loaded:
                await self._look(line, key)
        return line

    async def _look(self, line: Line, key: str) -> None:
        """Read the place anew: another process may have been active meanwhile, and come further."""
        held = read(await self._decide(key, lambda record: RuleResult(record, record)))
        if not line.loaded:
            line.unknown, line.loaded = held is None and self._first is None and not line.busy, True
        if held is not None and (line.unknown or held.following > line.place.following):
            line.unknown = False
            line.move(held, self._clock.now(), saved=True)
            line.wake()

    def _trim(self) -> None:
        """Forget those keys in memory that nobody uses; the store knows them."""
        while len(self._lines) > KNOWN:
            idle = next((key for key, line in self._lines.items() if not line.users and line.saved), None)
            if idle is None:
                return
            del self._lines[idle]

    async def _decide(
        self, key: str, rule: Callable[[bytes | None], RuleResult[bytes | None]]
    ) -> bytes | None:
        return await apply_rule_with_retry(
            self._store,
            record_key("sequence", self.queue.name, key),
            rule,
            clock=self._clock,
            patience=self._patience,
        )

    def _position(self, message: Any, delivery: Delivery) -> tuple[str, int]:
        headers = delivery.headers
        key = headers.get(SEQUENCE_KEY) if self._key is None else self._key(message)
        number = headers.get(SEQUENCE) if self._number is None else self._number(message)
        if not isinstance(key, str) or not isinstance(number, int):
            raise DeadLetter(
                f"the message has no number: give it the headers {SEQUENCE_KEY} and {SEQUENCE} (Numbers makes them)"
            )
        return key, number

    def _included(self) -> App:
        if self._app is None:
            raise ConfigError(
                f"the Resequencer of {self.queue.name} belongs to no App: app.include(resequencer)"
            )
        return self._app


__all__ = ["Resequencer", "ResequencerStatistics"]
