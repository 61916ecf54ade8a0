"""Claims on every store: one worker at a time, one result, and none from workers whose lease has expired."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.patterns.conftest import OpenStore
from warren.patterns import Store
from warren.patterns.idempotency import rules
from warren.patterns.idempotency.rules import Busy, Claimed, Done
from warren.patterns.stores import RuleResult, apply_rule

NOW = 1_790_000_000_000
LEASE = 300_000
KEEP = 86_400_000


async def claim(store: Store, owner: str, now_ms: int = NOW) -> Claimed | Busy | Done:
    return await apply_rule(
        store, "order-42", partial(rules.claim, owner=owner, now_ms=now_ms, lease_ms=LEASE)
    )


async def must_claim(store: Store, owner: str, now_ms: int = NOW) -> Claimed:
    claimed = await claim(store, owner, now_ms)
    assert isinstance(claimed, Claimed), claimed
    return claimed


async def finish(store: Store, claimed: Claimed, result: bytes, now_ms: int = NOW) -> bool:
    rule = partial(rules.finish, claimed=claimed, result=result, now_ms=now_ms, keep_ms=KEEP)
    return await apply_rule(store, "order-42", rule)


async def test_a_second_worker_waits_until_the_first_has_a_result(store: Store) -> None:
    first = await must_claim(store, "a")
    assert await claim(store, "b", NOW + 1) == Busy(NOW + LEASE)
    assert await finish(store, first, b"receipt\n\x00", NOW + 2)
    assert await claim(store, "b", NOW + 3) == Done(b"receipt\n\x00")


async def test_of_concurrent_claims_one_succeeds(open_store: OpenStore) -> None:
    stores = [open_store(), open_store()]
    answers = await asyncio.gather(*(claim(stores[n % 2], f"worker-{n}") for n in range(30)))
    assert sum(isinstance(answer, Claimed) for answer in answers) == 1
    assert answers.count(Busy(NOW + LEASE)) == 29


async def test_a_repeated_claim_or_result_of_the_same_owner_succeeds(store: Store) -> None:
    assert await claim(store, "a") == await must_claim(store, "a")
    first = await must_claim(store, "a")
    assert await finish(store, first, b"r")
    assert await finish(store, first, b"r")


async def test_work_of_a_crashed_worker_is_taken_over_when_its_lease_expires(open_store: OpenStore) -> None:
    dead = open_store()
    abandoned = await must_claim(dead, "a")
    await dead.close()
    store = open_store()
    assert await claim(store, "b", NOW + LEASE - 1) == Busy(NOW + LEASE)
    taken = await must_claim(store, "b", NOW + LEASE)
    assert taken.token > abandoned.token


async def test_a_worker_that_was_replaced_after_its_lease_cannot_write_a_result(store: Store) -> None:
    slow = await must_claim(store, "slow")
    quick = await must_claim(store, "quick", NOW + LEASE)
    assert not await finish(store, slow, b"slow", NOW + LEASE + 1)
    assert not await apply_rule(
        store, "order-42", partial(rules.renew, claimed=slow, now_ms=NOW, lease_ms=LEASE)
    )
    assert not await apply_rule(store, "order-42", partial(rules.release, claimed=slow))
    assert await finish(store, quick, b"quick", NOW + LEASE + 2)
    assert not await finish(store, slow, b"slow", NOW + LEASE + 3)
    assert await claim(store, "c", NOW + LEASE + 4) == Done(b"quick")


async def test_a_worker_with_an_expired_lease_can_finish_if_nobody_took_over(store: Store) -> None:
    slow = await must_claim(store, "slow")
    assert await finish(store, slow, b"slow", NOW + 10 * LEASE)
    assert await claim(store, "b", NOW + 10 * LEASE + 1) == Done(b"slow")


async def test_a_renewed_lease_is_not_taken_over(store: Store) -> None:
    first = await must_claim(store, "a")
    assert await apply_rule(
        store, "order-42", partial(rules.renew, claimed=first, now_ms=NOW + 20_000, lease_ms=LEASE)
    )
    assert await claim(store, "b", NOW + LEASE) == Busy(NOW + 20_000 + LEASE)


async def test_released_work_can_be_claimed_at_once(store: Store) -> None:
    first = await must_claim(store, "a")
    assert await apply_rule(store, "order-42", partial(rules.release, claimed=first))
    second = await must_claim(store, "b", NOW + 1)
    assert second.token > first.token
    assert not await apply_rule(store, "order-42", partial(rules.release, claimed=first))


async def test_a_result_is_kept_for_the_retention_time_also_over_a_restart(open_store: OpenStore) -> None:
    first = open_store()
    assert await finish(first, await must_claim(first, "a"), b"r")
    await first.close()
    store = open_store()
    assert await claim(store, "b", NOW + KEEP - 1) == Done(b"r")
    again = await must_claim(store, "b", NOW + KEEP)
    assert again.owner == "b"


async def test_fencing_tokens_increase_even_if_the_clock_stands_still(store: Store) -> None:
    tokens = []
    for n in range(5):

        def rule(record: bytes | None, owner: str = f"{n}") -> RuleResult[Claimed | Busy | Done]:
            # Kept for longer than the lease, so that no store has forgotten it when the next one asks.
            return rules.claim(record, owner=owner, now_ms=NOW, lease_ms=0)._replace(keep_ms=KEEP)

        claimed = await apply_rule(store, "k", rule)
        assert isinstance(claimed, Claimed)
        tokens.append(claimed.token)
    assert tokens == sorted(set(tokens))
