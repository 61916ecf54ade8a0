"""Cancellation at each await: no claim and no lease stays held by a task that is gone."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from tests.patterns.conftest import OpenStore
from tests.support.cancellation import cancellations
from tests.support.polling import eventually
from warren.patterns import Once
from warren.patterns.idempotency.rules import Busy, claim
from warren.patterns.stores import apply_rule, record_key
from warren.patterns.timers.leader_election import LeaderElection
from warren.sdk import Delivery, SystemClock

TURNS = (0, 1, 2, 5, 13)
DAY_MS = 86_400_000


async def test_a_message_whose_handling_is_cancelled_can_be_handled_at_once(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    once = Once(store, lease=timedelta(days=1))
    numbers = iter(range(1000))

    async def handler() -> bytes:
        return b"receipt"

    async def handle() -> None:
        message_id = f"m-{next(numbers)}"
        handled.append(message_id)
        delivery = Delivery(b"", "", "", "charges", False, None, {"message_id": message_id})
        assert await once.run(None, delivery, handler) == b"receipt"

    async def is_free() -> bool:
        """Ask for the claim as another worker, far from the end of the lease. A result may still be on its way."""
        now_ms = int(SystemClock().now() * 1000)
        answer = await apply_rule(
            other,
            record_key("once", "charges", handled[-1]),
            partial(claim, owner="other", now_ms=now_ms, lease_ms=DAY_MS),
        )
        return not isinstance(answer, Busy)

    handled: list[str] = []
    cancelled = 0
    async for _, _, outcome in cancellations(handle, TURNS):
        cancelled += outcome is not None
        await eventually(is_free, "the key is free, or has a result")
    assert cancelled > 1


async def test_a_leader_that_is_cancelled_and_resigns_leaves_no_lease(open_store: OpenStore) -> None:
    store = open_store()
    elections = [LeaderElection(store, "lead", str(n), lease=86_400, clock=SystemClock()) for n in range(200)]
    remaining = iter(elections)
    current: list[LeaderElection] = []

    async def lead() -> None:
        current.append(next(remaining))
        await current[-1].heartbeat(-1)

    async for _, _, _ in cancellations(lead, TURNS):
        await current[-1].resign()
        follower = LeaderElection(open_store(), "lead", "next", lease=86_400, clock=SystemClock())
        assert (await follower.heartbeat(-1)).is_leader
        await follower.resign()
