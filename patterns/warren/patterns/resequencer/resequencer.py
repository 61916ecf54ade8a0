"""Resequencer: messages that carry a number are handled in the order of their numbers, in whatever order they arrive.

Guarantees: for each key, number after number, one at a time; keys do not wait for each other. A message that arrives
early waits unacknowledged, so a crash returns it to the queue. The next number is kept in a store, so it is known after
a restart, and a repeated number is not handled again. Of several processes with the same resequencer one gets the
messages, and another takes over when it is gone (single active consumer). When a process loses its connection, its
waiting messages are given up, for the broker to deliver them again, and the next numbers are read from the store again;
a handler that is running then runs to its end, while its message is delivered again elsewhere. At most `window`
messages wait in memory; further ones go to a wait queue, and return after `again_after`.

A missing number is skipped after `gap_timeout`: later messages are handled without it, counted and logged, and the
missing message is dead-lettered if it arrives later. The same holds for a message whose handler failed for good.

Costs: one store operation per message, one more if a key is new to the process or the message is redelivered, two more
for a message that waits; and one idle task for each message that waits in memory.
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

from warren.patterns.argument_checks import check_store
from warren.patterns.delay import wait_queue
from warren.patterns.monotonic_time import monotonic_time
from warren.patterns.resequencer.key_sequence import KeySequence
from warren.patterns.resequencer.rules import Position, advance, read
from warren.patterns.resequencer.sequence_numbers import SEQUENCE, SEQUENCE_KEY
from warren.patterns.stores import RuleResult, Store, StoreReference, apply_rule_with_retry, record_key
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
from warren.sdk.extend import (
    Duration,
    IncludedComponent,
    check_async,
    check_decorated,
    check_whole_number,
    duration,
    optional_duration,
    seconds,
)

log: logging.Logger = logging.getLogger("warren.patterns")

MAX_KEYS: Final = 10_000
FOREVER: Final = 1e9

Parameters = ParamSpec("Parameters")


@dataclass(slots=True)
class ResequencerStatistics:
    """Counters of one `Resequencer` in this process. `waiting` is the number of messages that are waiting now."""

    handled: int = 0
    waiting: int = 0
    waited: int = 0
    """Messages that waited because they arrived before their turn."""
    repeated: int = 0
    """Messages whose number had been handled before; they were acknowledged and not handled again."""
    gaps: int = 0
    """Gaps (missing numbers before a waiting message) that were skipped after `gap_timeout`."""
    late: int = 0
    """Messages that arrived after their number had been skipped; they were dead-lettered."""
    delayed: int = 0
    """Messages that were delayed because `window` messages were waiting already, or because the App was closing."""


class Resequencer(IncludedComponent):
    """Ordered handling by number: `@resequencer.handle(OrderChanged)`, then `app.include(resequencer)`.

    :param queue: queue of the messages; it has a single active consumer. A Command must name the same one: `class
        OrderStep(Command, queue=Queue("steps", single_active_consumer=True))`.
    :param store: store that keeps the next number of each key: `RedisStore`, `PostgresStore`, `SqliteStore`.
    :param key: returns the key of a message, such as its order's id: each key has numbers of its own. By default the
        header `warren-sequence-key`.
    :param number: returns a message's number; by default the header `warren-sequence`. `SequenceNumbers` creates both
        headers.
    :param first: first number of a key; None accepts whatever number arrives first. Default 1.
    :param gap_timeout: how long messages wait for a missing number before it is skipped; None waits for ever. Default 1
        minute.
    :param window: largest number of messages, of all keys together, that wait in memory. Default 100.
    :param again_after: delay of a message that cannot wait in memory, because `window` messages do already. Default 1
        s.
    :param concurrency: largest number of handlers that run at a time, each for a different key. Default 10.
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
        gap_timeout: Duration | None = timedelta(minutes=1),
        window: int = 100,
        again_after: Duration = timedelta(seconds=1),
        concurrency: int = 10,
        keep: Duration = timedelta(days=7),
        patience: Duration = timedelta(minutes=1),
    ) -> None:
        check_whole_number(f"Resequencer {queue}: window", window)
        check_whole_number(f"Resequencer {queue}: concurrency", concurrency)
        if first is not None:
            check_whole_number(f"Resequencer {queue}: first", first, -(2**63), 2**63 - 1)
        again_after, keep = (
            duration(again_after, "Resequencer: again_after"),
            duration(keep, "Resequencer: keep"),
        )
        gap_timeout = optional_duration(gap_timeout, "Resequencer: gap_timeout")
        if min(again_after, keep) < timedelta(milliseconds=1) or (gap_timeout or keep) <= again_after:
            raise ConfigError(
                f"Resequencer {queue}: again_after ({again_after}) must be at least 1 ms and shorter than gap_timeout"
            )
        self.queue: Queue = Queue(queue, single_active_consumer=True)
        self.statistics: ResequencerStatistics = ResequencerStatistics()
        """Counters of what this object has done in this process."""
        check_store(f"Resequencer {queue}", store)
        self._store = StoreReference(store)
        self._key = key
        self._number = number
        self._first = first
        self._gap = None if gap_timeout is None else gap_timeout.total_seconds()
        self._window = window
        self._again_after = again_after
        self._concurrency = concurrency
        self._keep_ms = keep // timedelta(milliseconds=1)
        self._patience = seconds(patience, "Resequencer: patience")
        self._running = asyncio.Semaphore(concurrency)
        self._sequences: OrderedDict[str, KeySequence] = OrderedDict()
        self._handlers: list[tuple[Any, Callable[..., Awaitable[None]], Mapping[str, Any]]] = []
        self._closing = False
        self._session = 0
        """Number of connections lost so far. A delivery that arrived before the last loss must not be handled."""
        super().__init__()
        self._clock: Clock = SystemClock()

    def handle(
        self, message: Any, **options: Any
    ) -> Callable[[Callable[Parameters, Awaitable[None]]], Callable[Parameters, Awaitable[None]]]:
        """Decorate the handler of a message class, as `app.handle` does. It is called in the order of the messages'
        numbers.

        :param message: message class, or another type that `app.handle` accepts. Several handlers, for different
            classes, share one order.
        :param options: `keys=`, `retry=` and the like, as for `app.handle`.
        """

        check_decorated("Resequencer.handle", message, example="resequencer.handle")

        def register(
            function: Callable[Parameters, Awaitable[None]],
        ) -> Callable[Parameters, Awaitable[None]]:
            check_async(function)
            if self._app is not None:
                self._register_handler(self._app, message, function, options)
            self._handlers.append((message, function, options))
            return function

        return register

    @property
    def inclusion_title(self) -> str:
        return f"Resequencer {self.queue.name}"

    @property
    def lost_without_app(self) -> str:
        return "its messages are not handled" if self._handlers else ""

    def register(self, app: App) -> None:
        self._store.use_clock(app.clock)
        if not self._handlers:
            raise ConfigError(
                f"the Resequencer of {self.queue.name} has no handler: add one with @resequencer.handle(...)"
            )
        super().register(app)
        self._clock = app.clock
        app.on_state(self._state_changed)
        app.declare(self.queue, wait_queue(self.queue.name, self._again_after))
        for message, function, options in self._handlers:
            self._register_handler(app, message, function, options)

    async def on_start(self) -> None:
        """Delete the next numbers of all keys from memory, because another process may have handled messages since they
        were read from the store."""
        self._running = asyncio.Semaphore(self._concurrency)
        self._sequences.clear()

    async def on_stop(self) -> None:
        """Close the store; the next use opens it again."""
        await self._store.close()

    def _register_handler(
        self, app: App, message: Any, function: Callable[..., Awaitable[None]], options: Mapping[str, Any]
    ) -> None:
        """Register the handler of a message class.

        :raises ConfigError: the App is running, or an option does not fit.
        """
        # As many as may wait, plus as many as may run: the message that the others wait for must find a place.
        concurrency = self._window + self._concurrency
        app.handle(message, queue=self._source(message), concurrency=concurrency, **options)(
            self._ordered(function)
        )

    def _source(self, message: Any) -> Queue | None:
        """Return the queue to pass to `app.handle`; None for a Command, which names its queue itself.

        :param message: type of the messages that the handler takes.
        :raises ConfigError: the Command has another queue than the resequencer.
        """
        if not (isinstance(message, type) and issubclass(message, Command)):
            return self.queue
        if message.queue_value != self.queue:
            raise ConfigError(
                f"{message.__name__} must use the resequencer's queue: declare class {message.__name__}(Command,"
                f" queue=Queue({self.queue.name!r}, single_active_consumer=True))"
            )
        return None

    def _ordered(self, function: Callable[..., Awaitable[None]]) -> Callable[..., Coroutine[Any, Any, None]]:
        @wraps(function)
        async def run(message: Any, *arguments: Any, **further: Any) -> None:
            delivery = current_delivery()
            assert delivery is not None
            await self._handle_in_order(message, delivery, lambda: function(message, *arguments, **further))

        return run

    async def _handle_in_order(
        self, message: Any, delivery: Delivery, run: Callable[[], Awaitable[None]]
    ) -> None:
        key, number = self._key_and_number(message, delivery)
        session = self._session
        sequence = await self._sequence(key, reload=delivery.redelivered)
        sequence.users += 1
        if sequence.start_is_unknown:
            sequence.position, sequence.start_is_unknown = Position(number), False
        reloaded = False
        try:
            while True:
                self._check_session(session)
                if number < sequence.position.next_number:
                    return self._handle_past_number(sequence, key, number)
                if number == sequence.position.next_number and not sequence.is_handling:
                    return await self._run(sequence, key, number, run, session)
                if not reloaded:
                    await self._reload(sequence, key)
                    reloaded = True
                    continue
                full = self._closing or self.statistics.waiting >= self._window
                # The message with the highest number waits longest anyway, so it makes room for a lower one.
                if (full and (self._closing or not sequence.evict_beyond(number))) or not await self._wait(
                    sequence, key, number
                ):
                    self._check_session(session)
                    return await self._delay(delivery)
                await self._reload(sequence, key)
        finally:
            sequence.users -= 1

    def _check_session(self, session: int) -> None:
        """Raise `Requeue` if the connection was lost since the delivery: the broker delivers the message again, perhaps
        to another process.

        :param session: number of lost connections when the message was delivered.
        """
        if session != self._session:
            raise Requeue

    async def _run(
        self, sequence: KeySequence, key: str, number: int, run: Callable[[], Awaitable[None]], session: int
    ) -> None:
        sequence.is_handling = True
        try:
            # If only its record failed, the handler has run and must not run again.
            if sequence.last_handled != number:
                async with self._running:
                    self._check_session(session)
                    await run()
                sequence.last_handled = number
                self.statistics.handled += 1
            # Stored before the next message begins, so that a crash repeats this message and none before it.
            next_number = replace(sequence.position, next_number=number + 1)
            record = await self._decide(key, partial(advance, position=next_number, keep_ms=self._keep_ms))
            sequence.move(read(record) or next_number, monotonic_time(self._clock), is_saved=True)
        finally:
            sequence.is_handling = False
            sequence.release_ready()

    def _handle_past_number(self, sequence: KeySequence, key: str, number: int) -> None:
        if sequence.position.was_skipped(number):
            self.statistics.late += 1
            raise DeadLetter(
                f"number {number} of {key!r} arrived after it was skipped: number {sequence.position.next_number} is next"
            )
        self.statistics.repeated += 1

    async def _wait(self, sequence: KeySequence, key: str, number: int) -> bool:
        """Wait until the message with this number may be handled, or was handled or skipped meanwhile. If `gap_timeout`
        passes without progress for the key, skip the missing numbers.

        :param sequence: state of the key `key` in this process.
        :return: False if the wait ended early, because a message with a lower number needed the place in memory, the
            App closes, or the connection was lost. The message must not be handled then.
        """
        self.statistics.waiting += 1
        self.statistics.waited += 1
        gap = FOREVER if self._gap is None else self._gap
        ready = sequence.wait(number, monotonic_time(self._clock))
        try:
            while not ready.done():
                rest = sequence.last_progress + gap - monotonic_time(self._clock)
                if sequence.is_stalled(gap, monotonic_time(self._clock)):
                    await self._reload(sequence, key)
                    if not ready.done() and sequence.is_stalled(gap, monotonic_time(self._clock)):
                        self._skip_gap(sequence, key)
                    continue
                # Sleep by the App's clock, so that a test on virtual time can move it.
                asleep = asyncio.ensure_future(self._clock.sleep(rest if rest > 0 else gap))
                try:
                    await asyncio.wait((ready, asleep), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    asleep.cancel()
            return ready.result()
        finally:
            sequence.remove(number, ready)
            self.statistics.waiting -= 1

    def _state_changed(self, state: State) -> None:
        """End the wait of all messages when the App closes or the connection is lost.

        When the App closes, waiting messages must not delay its end. After a lost connection, another process may get
        the messages.
        """
        self._closing = state in (State.CLOSING, State.CLOSED)
        if state is State.CONNECTING:
            self._session += 1
            for sequence in self._sequences.values():
                sequence.reset(Position(self._first or 0))
        if self._closing or state is State.CONNECTING:
            for sequence in self._sequences.values():
                sequence.evict_all()

    async def _delay(self, delivery: Delivery) -> None:
        self.statistics.delayed += 1
        waiting = wait_queue(self.queue.name, self._again_after)
        await self.included_in().forward(delivery, key=waiting.name)

    def _skip_gap(self, sequence: KeySequence, key: str) -> None:
        missing, found = sequence.position.next_number, sequence.first_waiting()
        self.statistics.gaps += 1
        log.warning(
            "event=resequencer.gap_skipped queue=%s key=%s first=%d last=%d",
            self.queue.name,
            key,
            missing,
            found - 1,
        )
        sequence.move(sequence.position.skip_to(found), monotonic_time(self._clock), is_saved=False)
        sequence.release_ready()

    async def _sequence(self, key: str, *, reload: bool) -> KeySequence:
        sequence = self._sequences.get(key)
        if sequence is None:
            sequence = self._sequences[key] = KeySequence(Position(self._first or 0))
            self._trim()
        self._sequences.move_to_end(key)
        async with sequence.loading:
            if reload or not sequence.is_loaded:
                await self._reload(sequence, key)
        return sequence

    async def _reload(self, sequence: KeySequence, key: str) -> None:
        """Read the next number of the key from the store, because another process may have handled further messages
        meanwhile. If it is higher than the one in memory, continue with it.

        :param sequence: state of the key `key` in this process, which is changed.
        :raises StoreUnavailable: the store did not answer.
        """
        held = read(await self._decide(key, lambda record: RuleResult(record, record)))
        if not sequence.is_loaded:
            sequence.start_is_unknown, sequence.is_loaded = (
                held is None and self._first is None and not sequence.is_handling,
                True,
            )
        if held is not None and (
            sequence.start_is_unknown or held.next_number > sequence.position.next_number
        ):
            sequence.start_is_unknown = False
            sequence.move(held, monotonic_time(self._clock), is_saved=True)
            sequence.release_ready()

    def _trim(self) -> None:
        """Delete keys without messages from memory if there are too many. Their next numbers remain in the store, from
        which they are read again when needed."""
        while len(self._sequences) > MAX_KEYS:
            idle = next(
                (
                    key
                    for key, sequence in self._sequences.items()
                    if not sequence.users and sequence.is_saved
                ),
                None,
            )
            if idle is None:
                return
            del self._sequences[idle]

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

    def _key_and_number(self, message: Any, delivery: Delivery) -> tuple[str, int]:
        headers = delivery.headers
        key = headers.get(SEQUENCE_KEY) if self._key is None else self._key(message)
        number = headers.get(SEQUENCE) if self._number is None else self._number(message)
        if not isinstance(key, str) or not key or not isinstance(number, int) or isinstance(number, bool):
            raise DeadLetter(
                f"the message has no number: publish it with the headers {SEQUENCE_KEY} and {SEQUENCE} (see SequenceNumbers)"
            )
        return key, number


__all__ = ["Resequencer", "ResequencerStatistics"]
