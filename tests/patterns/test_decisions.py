"""The rules of a deadline on every store: whatever the order of events, exactly one of completed and
expired."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.patterns.conftest import OpenStore
from tests.support.tiers import Tier, chosen, examples
from warren.patterns import RedisStore, SqliteStore, Store
from warren.patterns.deadline import rules
from warren.patterns.deadline.rules import DeadlineOutcome, DeadlineRecord, DeadlineState
from warren.patterns.stores import RuleResult, apply_rule

NOW = 1_790_000_000_000
AFTER = 30 * 60_000
KEEP = 86_400_000
KEY = "order-unpaid:42"
Answer = TypeVar("Answer")


async def start(store: Store, now: int = NOW, due: int = NOW + AFTER) -> DeadlineState:
    return (await apply_rule(store, KEY, partial(rules.start, due_ms=due, now_ms=now, keep_ms=KEEP))).state


async def complete(store: Store, by: str, now: int = NOW, at: int | None = None) -> DeadlineOutcome:
    return await apply_rule(store, KEY, partial(rules.complete, by=by, at_ms=at, now_ms=now, keep_ms=KEEP))


async def expire(store: Store, now: int) -> DeadlineRecord:
    return await apply_rule(store, KEY, partial(rules.expire, now_ms=now, keep_ms=KEEP))


async def extend(store: Store, due: int, now: int = NOW) -> bool:
    return await apply_rule(store, KEY, partial(rules.extend, due_ms=due, now_ms=now, keep_ms=KEEP))


async def confirm(store: Store, now: int) -> None:
    await apply_rule(store, KEY, partial(rules.confirm, now_ms=now, keep_ms=KEEP))


async def test_a_completion_before_the_deadline_wins(store: Store) -> None:
    assert await start(store) is DeadlineState.PENDING
    assert await complete(store, "a", NOW + 1) is DeadlineOutcome.WON
    assert (await expire(store, NOW + AFTER)).state is DeadlineState.COMPLETED
    assert await complete(store, "a", NOW + AFTER) is DeadlineOutcome.WON, (
        "the winner, redelivered, hears the same"
    )
    assert await complete(store, "b", NOW + AFTER) is DeadlineOutcome.REPEATED


async def test_an_expiry_without_a_completion_wins(store: Store) -> None:
    await start(store)
    assert (await expire(store, NOW + AFTER)).state is DeadlineState.EXPIRED
    assert (await expire(store, NOW + AFTER)).state is DeadlineState.EXPIRED, (
        "the signal is owed until it is confirmed"
    )
    await confirm(store, NOW + AFTER)
    assert (await expire(store, NOW + AFTER)).state is DeadlineState.SIGNALLED
    assert await complete(store, "a", NOW + AFTER) is DeadlineOutcome.LATE
    assert await complete(store, "a", NOW + AFTER) is DeadlineOutcome.LATE, (
        "who must be refunded hears it each time"
    )


async def test_an_early_expiry_leaves_the_deadline_pending_until_its_due_time(store: Store) -> None:
    await start(store)
    assert await expire(store, NOW + AFTER - 1) == DeadlineRecord(
        DeadlineState.PENDING, NOW + AFTER, None, NOW + AFTER + KEEP
    )
    assert await extend(store, NOW + 2 * AFTER)
    assert await extend(store, NOW + AFTER), "shorter is no error, and changes nothing"
    assert (await expire(store, NOW + AFTER)).due_ms == NOW + 2 * AFTER
    assert (await expire(store, NOW + 2 * AFTER)).state is DeadlineState.EXPIRED
    assert not await extend(store, NOW + 3 * AFTER)


async def test_a_completion_before_the_start_wins(open_store: OpenStore) -> None:
    store = open_store()
    assert await complete(store, "a") is DeadlineOutcome.WON
    await store.close()
    again = open_store()
    assert await start(again, NOW + 1, NOW + 10 * KEEP) is DeadlineState.COMPLETED
    assert (await expire(again, NOW + 10 * KEEP)).state is DeadlineState.COMPLETED, (
        "kept until the due message has come"
    )


async def test_a_second_start_changes_nothing(store: Store) -> None:
    await start(store)
    assert await start(store, NOW + 5, NOW + 5 + AFTER) is DeadlineState.PENDING
    assert (await expire(store, NOW + AFTER)).state is DeadlineState.EXPIRED


async def test_a_completion_with_a_time_after_the_deadline_is_late(store: Store) -> None:
    await start(store)
    assert await complete(store, "a", NOW + 2 * AFTER, at=NOW + AFTER + 1) is DeadlineOutcome.LATE
    assert (await expire(store, NOW + 2 * AFTER)).state is DeadlineState.EXPIRED, (
        "the signal follows when the due message comes"
    )


async def test_a_completion_with_a_time_before_the_deadline_wins_if_the_expiry_is_not_decided(
    store: Store,
) -> None:
    await start(store)
    assert await complete(store, "a", NOW + 2 * AFTER, at=NOW + AFTER) is DeadlineOutcome.WON


async def test_the_record_of_a_decided_deadline_expires_and_that_of_a_pending_one_does_not(
    store: Store,
) -> None:
    assert (await expire(store, NOW)).state is DeadlineState.FORGOTTEN
    await start(store)
    assert (await expire(store, NOW + AFTER + 2 * KEEP)).state is DeadlineState.EXPIRED
    await confirm(store, NOW + AFTER + 2 * KEEP)
    assert await start(store, NOW + 4 * KEEP, NOW + 4 * KEEP + AFTER) is DeadlineState.PENDING


async def test_of_a_payment_and_an_expiry_at_the_same_time_one_wins(open_store: OpenStore) -> None:
    stores = [open_store(), open_store()]
    for n in range(20):
        key = f"race-{n}"
        await apply_rule(stores[0], key, partial(rules.start, due_ms=NOW, now_ms=NOW, keep_ms=KEEP))
        outcome, expired = await asyncio.gather(
            apply_rule(
                stores[n % 2], key, partial(rules.complete, by="a", at_ms=None, now_ms=NOW, keep_ms=KEEP)
            ),
            apply_rule(stores[1 - n % 2], key, partial(rules.expire, now_ms=NOW, keep_ms=KEEP)),
        )
        assert (outcome is DeadlineOutcome.WON) == (expired.state is DeadlineState.COMPLETED)
        assert (outcome is DeadlineOutcome.LATE) == (expired.state is DeadlineState.EXPIRED)


def test_every_sequence_of_events_leaves_one_outcome() -> None:
    """All sequences of five events (four below tier `all`), with and without a start before them; on the rules alone: what
    the stores add is that two rules are never applied to the same record.
    """

    def play(events: tuple[str, ...]) -> None:
        record: bytes | None = None
        now, due_messages, outcomes, signals = NOW, 0, set[str](), 0

        def take(step: RuleResult[Answer]) -> Answer:
            nonlocal record
            record = step.record
            return step.answer

        for event in events:
            if event == "start":
                state = take(rules.start(record, due_ms=now + AFTER, now_ms=now, keep_ms=KEEP)).state
                due_messages += state in (DeadlineState.PENDING, DeadlineState.EXPIRED)
            elif event == "wait":
                now += AFTER
            elif event == "extend":
                assert not (
                    take(rules.extend(record, due_ms=now + AFTER, now_ms=now, keep_ms=KEEP)) and outcomes
                )
            elif event.startswith("pay"):
                at = (
                    now - AFTER
                    if event == "pay, as of before"
                    else now
                    if event == "pay, as of now"
                    else None
                )
                outcome = take(rules.complete(record, by="p", at_ms=at, now_ms=now, keep_ms=KEEP))
                outcomes.add("expired" if outcome is DeadlineOutcome.LATE else "completed")
            elif due_messages:
                decided = take(rules.expire(record, now_ms=now, keep_ms=KEEP))
                if decided.state is DeadlineState.EXPIRED:
                    outcomes.add("expired")
                    if event == "due":
                        signals += 1
                        take(rules.confirm(record, now_ms=now, keep_ms=KEEP))
                due_messages -= event == "due" and decided.state is not DeadlineState.PENDING
            assert len(outcomes) <= 1, events
            assert not signals or outcomes == {"expired"}, events
        # Nothing is left undecided: when every due message has come, each started order has one outcome.
        if due_messages:
            final = take(rules.expire(record, now_ms=now + 2 * AFTER, keep_ms=KEEP)).state
            assert final in (DeadlineState.COMPLETED, DeadlineState.EXPIRED, DeadlineState.SIGNALLED), events
            outcomes.add("completed" if final is DeadlineState.COMPLETED else "expired")
            assert len(outcomes) == 1, events

    names = (
        "start",
        "wait",
        "extend",
        "pay",
        "pay, as of now",
        "pay, as of before",
        "due",
        "due, then a crash",
    )
    for events in itertools.product(names, repeat=5 if chosen() is Tier.ALL else 4):
        play(("start", *events))
        play(events)


class OneOutcome(RuleBasedStateMachine):
    """Starts, payments, due messages, redeliveries and restarts in any order, against the one question: who
    won?"""

    def open(self) -> Store:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.store = self.open()
        self.now = NOW
        self.due_messages = 0
        self.signals = 0
        self.outcomes: set[str] = set()
        self.payments = 0

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self.store.close())
            self.runner.close()

    @rule()
    def order_placed_or_redelivered(self) -> None:
        if self.runner.run(start(self.store, self.now, self.now + AFTER)) in (
            DeadlineState.PENDING,
            DeadlineState.EXPIRED,
        ):
            self.due_messages += 1

    @rule(redelivered=st.booleans(), lag=st.sampled_from([None, None, 0, AFTER // 3, 2 * AFTER]))
    def paid(self, redelivered: bool, lag: int | None) -> None:
        if not self.due_messages and not self.payments and lag is None:
            return  # Most orders are placed before they are paid; or else few runs would get beyond that.
        self.payments += not redelivered
        at = None if lag is None else self.now - lag
        outcome = self.runner.run(complete(self.store, f"payment-{self.payments}", self.now, at))
        self.outcomes.add("expired" if outcome is DeadlineOutcome.LATE else "completed")

    @precondition(lambda self: self.due_messages > 0)
    @rule(crash_after_decision=st.booleans(), crash_after_publish=st.booleans(), redelivered=st.booleans())
    def due(self, crash_after_decision: bool, crash_after_publish: bool, redelivered: bool) -> None:
        decided = self.runner.run(expire(self.store, self.now))
        if decided.state is DeadlineState.PENDING:
            return  # Delayed for the rest.
        if decided.state is DeadlineState.EXPIRED:
            assert decided.due_ms is not None
            assert self.now >= decided.due_ms or "expired" in self.outcomes
            self.outcomes.add("expired")
            if crash_after_decision:
                return  # Not acknowledged: the message stays.
            self.signals += 1
            if crash_after_publish:
                return
            self.runner.run(confirm(self.store, self.now))
        else:
            assert decided.state in (DeadlineState.COMPLETED, DeadlineState.SIGNALLED)
        self.due_messages -= not redelivered

    @rule(by=st.sampled_from([0, AFTER // 2]))
    def extended(self, by: int) -> None:
        if self.runner.run(extend(self.store, self.now + by, self.now)):
            assert not self.outcomes

    @rule(by=st.sampled_from([1, AFTER // 2, AFTER]), restart=st.booleans())
    def time_passes(self, by: int, restart: bool) -> None:
        self.now += by
        if restart:
            self.runner.run(self.store.close())
            self.store = self.open()

    @invariant()
    def one_outcome(self) -> None:
        if hasattr(self, "outcomes"):
            assert len(self.outcomes) <= 1
            assert not self.signals or self.outcomes == {"expired"}


SETTINGS = settings(
    max_examples=examples(200),
    stateful_step_count=25,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)


def test_any_order_of_events_leaves_one_outcome_in_sqlite(tmp_path: Path) -> None:
    # In memory where there is a place for files: a sync of a disk may take a second, and here are thousands of them.
    memory = Path("/dev/shm")
    folder = memory if os.access(memory, os.W_OK) else tmp_path

    class InSqlite(OneOutcome):
        @initialize()
        def begin(self) -> None:
            self.folder = tempfile.TemporaryDirectory(prefix="warren-decisions-", dir=folder)
            self.path = Path(self.folder.name) / "decisions.sqlite"
            super().begin()

        def teardown(self) -> None:
            super().teardown()
            if hasattr(self, "folder"):
                self.folder.cleanup()

        def open(self) -> Store:
            return SqliteStore(self.path)

    run_state_machine_as_test(InSqlite, settings=SETTINGS)  # type: ignore[no-untyped-call, unused-ignore]


def test_any_order_of_events_leaves_one_outcome_in_redis(redis_url: str) -> None:
    class InRedis(OneOutcome):
        @initialize()
        def begin(self) -> None:
            self.prefix = f"{uuid4().hex}:"
            super().begin()

        def open(self) -> Store:
            return RedisStore(redis_url, prefix=self.prefix)

    run_state_machine_as_test(InRedis, settings=SETTINGS)  # type: ignore[no-untyped-call, unused-ignore]
