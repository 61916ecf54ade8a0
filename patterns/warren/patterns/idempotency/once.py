"""`Once`: a handler whose effect happens once for each key, although its message may be delivered several times.

Guarantees: of all deliveries with one key, in all processes that share the store, one runs the handler at a time. When
it has returned, later deliveries get its stored result without running it again, until `keep` is over. A handler that
raised, or whose process died, counts as not run: the next delivery runs it again. One gap remains: after a crash
between the handler's effect and the storing of its result, the handler runs twice. Only an effect that includes the
claim's key or token (a database constraint, an idempotency key of a payment service) closes that gap.

Costs: two store operations per message (claim, finish), and one each third of a lease while the handler runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from warren.patterns.argument_checks import check_function, check_store
from warren.patterns.idempotency import rules
from warren.patterns.idempotency.delivery_key import idempotency_key
from warren.patterns.idempotency.rules import Busy, Claimed, Done
from warren.patterns.stores import (
    RuleResult,
    Store,
    StoreReference,
    StoreUnavailable,
    apply_rule,
    apply_rule_with_retry,
)
from warren.sdk import App, Clock, ConfigError, Delivery, SystemClock
from warren.sdk.extend import Duration, check_choice, duration, seconds

log: logging.Logger = logging.getLogger("warren.patterns")

FIRST_POLL_SECONDS: Final = 0.02
MAX_POLL_SECONDS: Final = 1.0

StoreFailure = Literal["fail_closed", "fail_open"]
"""Treatment of a delivery while the store fails: it waits and then fails, or its handler runs unprotected."""


@dataclass(slots=True)
class OnceStatistics:
    """Counters of the deliveries that one `Once` has processed in this process."""

    run: int = 0
    """Deliveries whose handler ran and whose result was stored."""
    duplicates: int = 0
    """Deliveries whose handler did not run, because a result for their key was stored already."""
    waited: int = 0
    """Deliveries that waited because another worker held the claim of their key."""
    failed: int = 0
    """Deliveries whose handler raised; the claim was released."""
    overtaken: int = 0
    """Deliveries whose handler ran longer than its lease, so that another worker took over: the effect may have
    happened twice."""
    unrecorded: int = 0
    """Deliveries whose handler ran, but whose result could not be stored: a duplicate would run it again."""
    unprotected: int = 0
    """Deliveries whose handler ran without a claim, because the store failed and `on_store_failure="fail_open"`."""


class Once:
    """Protection for a handler (`app.handle(..., once=Once(store))`): the handler runs once for each key, and later
    deliveries with the same key get its stored result.

    :param store: `RedisStore` or `PostgresStore`, shared by processes, or `SqliteStore`, on one machine.
    :param key: returns the key of a decoded message (`lambda c: c.order_id`); by default the message id, which a
        republish and a redelivery keep. Keys of different queues are independent.
    :param keep: how long a result is stored, and a duplicate recognised. Default one day.
    :param lease: how long a claim lasts without renewal. While the handler runs, the claim is renewed after each third
        of this time. After a crash the next delivery waits for at most the whole time. Default 30 s.
    :param on_store_failure: `fail_closed`, the default: no handler runs without the store; the delivery waits up to
        `patience` and then fails with `StoreUnavailable`, for the handler's retry policy. `fail_open`: the handler runs
        unprotected, at least once.
    :param patience: how long a delivery waits, unacknowledged, for a store that fails. Default one minute.
    :param clock: clock of leases and results. Default the App's.
    :raises ConfigError: a duration is not positive.
    """

    def __init__(
        self,
        store: Store,
        *,
        key: Callable[[Any], str] | None = None,
        keep: Duration = timedelta(days=1),
        lease: Duration = timedelta(seconds=30),
        on_store_failure: StoreFailure = "fail_closed",
        patience: Duration = timedelta(minutes=1),
        clock: Clock | None = None,
    ) -> None:
        keep, lease = duration(keep, "Once: keep"), duration(lease, "Once: lease")
        if min(keep, lease) < timedelta(milliseconds=1):
            raise ConfigError(f"Once: keep ({keep}) and lease ({lease}) must be at least 1 ms")
        check_store("Once", store)
        self._store = StoreReference(store)
        check_function("Once: key", key, "key=lambda message: message.order_id")
        self._key = key
        self._keep_ms = keep // timedelta(milliseconds=1)
        self._lease_ms = lease // timedelta(milliseconds=1)
        check_choice("Once: on_store_failure", on_store_failure, StoreFailure)
        self._fail_open = on_store_failure == "fail_open"
        self._patience = seconds(patience, "Once: patience")
        self._own_clock = clock
        self._clock: Clock = clock or SystemClock()
        self.statistics: OnceStatistics = OnceStatistics()
        """Counters of what this object has done in this process."""

    def register(self, app: App) -> None:
        """Take the App's clock for leases and results, unless the constructor got a clock (called by the SDK when the
        handler is registered)."""
        self._store.use_clock(self._own_clock or app.clock)
        self._clock = self._own_clock or app.clock

    async def run(self, message: Any, delivery: Delivery, handler: Callable[[], Awaitable[bytes]]) -> bytes:
        """Run `handler` unless a result for the delivery's key is stored, and return the encoded result (called by the
        SDK).

        :raises DeadLetter: there is neither a key function nor a message id.
        :raises StoreUnavailable: `fail_closed`, and the store did not answer within `patience`.
        """
        key = idempotency_key(self._key, message, delivery)
        owner = secrets.token_hex(8)
        try:
            claim = await self._claim(key, owner)
        except StoreUnavailable as error:
            if not self._fail_open:
                raise
            log.warning("event=once.protection_skipped key=%s error=%s", key, error)
            self.statistics.unprotected += 1
            return await handler()
        except asyncio.CancelledError:
            # The request may be on its way to the store. Shielded: the key must not stay claimed for a whole lease.
            await asyncio.shield(self._give_back(key, lambda record: rules.withdraw(record, owner)))
            raise
        if isinstance(claim, Done):
            self.statistics.duplicates += 1
            return claim.result
        return await self._run_claimed(key, claim, handler)

    async def on_stop(self) -> None:
        """Close the store; the next use opens it again."""
        await self._store.close()

    async def _claim(self, key: str, owner: str) -> Claimed | Done:
        """Claim the key and return the claim; return `Done` if the key has a stored result. Wait while another worker
        holds the claim and, with `fail_closed`, while the store fails.

        :param owner: random id, written into the claim. A repeated call with the same id gets the same claim.
        """

        def rule(record: bytes | None) -> RuleResult[Claimed | Busy | Done]:
            return rules.claim(record, owner=owner, now_ms=self._now_ms(), lease_ms=self._lease_ms)

        wait = FIRST_POLL_SECONDS
        waited = False
        while True:
            patience = 0.0 if self._fail_open else self._patience
            claim = await apply_rule_with_retry(self._store, key, rule, clock=self._clock, patience=patience)
            if not isinstance(claim, Busy):
                return claim
            self.statistics.waited += not waited
            waited = True
            # The holder may finish long before its lease ends, so the claim is polled.
            await self._clock.sleep(min(wait, max(0.001, (claim.until_ms - self._now_ms()) / 1000)))
            wait = min(2 * wait, MAX_POLL_SECONDS)

    async def _run_claimed(
        self, key: str, claimed: Claimed, handler: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        renewing: list[asyncio.Task[None]] = []

        def renew() -> None:
            # In a separate context: a sleep of this task must not count as a sleep of the handler.
            renewing.append(
                asyncio.create_task(
                    self._renew(key, claimed), name=f"lease of {key}", context=contextvars.Context()
                )
            )

        # Most handlers end before the first renewal is due: a timer costs less than a task.
        timer = self._clock.call_at(self._clock.now() + self._lease_ms / 3000, renew)

        def stop_renewing() -> None:
            timer.cancel()
            for task in renewing:
                task.cancel()

        try:
            result = await handler()
        except BaseException:
            self.statistics.failed += 1
            # A renewal that comes after the release would claim the key again.
            stop_renewing()
            # Shielded: a shutdown that cancels the handler must not leave the key claimed for a whole lease.
            give_back = self._give_back(
                key, lambda record: rules.release(record, claimed), guess=claimed.record()
            )
            await asyncio.shield(give_back)
            raise
        stop_renewing()
        # The effect has happened: a shutdown must not cancel its record either.
        await asyncio.shield(self._finish(key, claimed, result))
        return result

    async def _renew(self, key: str, claimed: Claimed) -> None:
        def rule(record: bytes | None) -> RuleResult[bool]:
            return rules.renew(record, claimed, now_ms=self._now_ms(), lease_ms=self._lease_ms)

        while True:
            try:
                if not await apply_rule(self._store, key, rule):
                    return
            except StoreUnavailable as error:
                log.warning("event=once.renewal_failed key=%s error=%s", key, error)
            await self._clock.sleep(self._lease_ms / 3000)

    async def _give_back(
        self, key: str, rule: Callable[[bytes | None], RuleResult[bool]], guess: bytes | None = None
    ) -> None:
        try:
            await apply_rule(self._store, key, rule, guess=guess)
        except StoreUnavailable as error:
            # The lease expires by itself; until then the next delivery waits.
            log.warning("event=once.release_failed key=%s error=%s", key, error)

    async def _finish(self, key: str, claimed: Claimed, result: bytes) -> None:
        """Store the handler's result. Retry while the store fails, then give up without an error, because an error
        would certainly make the handler run again.

        :param key: key of the record in the store.
        :param claimed: the claim under which the handler ran.
        :param result: result of the handler, encoded as JSON.
        """

        def rule(record: bytes | None) -> RuleResult[bool]:
            return rules.finish(record, claimed, result, now_ms=self._now_ms(), keep_ms=self._keep_ms)

        try:
            stored = await apply_rule_with_retry(
                self._store,
                key,
                rule,
                clock=self._clock,
                patience=self._patience,
                guess=claimed.record(),
            )
        except StoreUnavailable as error:
            self.statistics.unrecorded += 1
            log.error("event=once.result_lost key=%s error=%s", key, error)
            return
        if stored:
            self.statistics.run += 1
        else:
            self.statistics.overtaken += 1
            log.warning("event=once.lease_overtaken key=%s token=%d", key, claimed.token)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


__all__ = ["Once", "OnceStatistics"]
