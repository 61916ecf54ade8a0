"""Roles of the queues that the SDK and the patterns make for themselves: each is known from what is declared."""

from __future__ import annotations

from datetime import timedelta

import pytest

from warren.patterns import BinaryDelayQueues, DelayedExchange, DelayStrategy, wait_queue
from warren.sdk import Declarable, Exchange, Queue
from warren.sdk.planning import QueueRole, role_of


def roles(items: list[Declarable]) -> dict[str, QueueRole | None]:
    exchanges = {item.name for item in items if isinstance(item, Exchange)}
    return {
        item.name: role_of(item.name, item.wire_arguments(), exchanges)
        for item in items
        if isinstance(item, Queue)
    }


@pytest.mark.parametrize("delay", [timedelta(milliseconds=1), timedelta(days=14)])
def test_a_wait_queue_delays(delay: timedelta) -> None:
    (role,) = roles([wait_queue("orders", delay)]).values()
    assert role is QueueRole.DELAY


@pytest.mark.parametrize(
    "strategy", [BinaryDelayQueues(levels=3), DelayedExchange()], ids=["levels", "native"]
)
def test_the_queues_of_a_delay_strategy_are_known(strategy: DelayStrategy) -> None:
    targets = [("shop", "order.placed"), ("", "billing"), ("shop", "k" * 250)]
    found: dict[str, QueueRole | None] = {}
    for exchange, key in targets if isinstance(strategy, DelayedExchange) else targets[:2]:
        found |= roles([*strategy.topology("later"), *strategy.target_topology("later", exchange, key)])
    assert set(found.values()) <= {QueueRole.DELAY, QueueRole.FORWARDING, QueueRole.LOST}
    assert list(found.values()).count(QueueRole.FORWARDING) == (
        3 if isinstance(strategy, DelayedExchange) else 2
    )
    assert list(found.values()).count(QueueRole.LOST) == 1


def test_a_dead_letter_queue_is_known() -> None:
    dead = Queue("orders").dead_letter_queue
    assert dead is not None
    assert roles([dead]) == {"orders.dead": QueueRole.DEAD_LETTERS}


@pytest.mark.parametrize(
    "queue",
    [
        Queue("orders"),
        Queue("orders.lost", dead_letter_exchange=None),
        Queue("orders.position", dead_letter_exchange=None),
        Queue("orders.wait.5", message_ttl=timedelta(milliseconds=6)),
        Queue("orders.hourly", message_ttl=timedelta(hours=1), dead_letter_exchange="late"),
        Queue("quotes", message_ttl=timedelta(0), dead_letter_exchange="late"),
        Queue("quotes.native.x", type="classic", message_ttl=timedelta(0), dead_letter_exchange="late"),
        Queue("jobs.2x1000ms.01", message_ttl=timedelta(seconds=1), dead_letter_exchange="late"),
    ],
    ids=lambda queue: queue.name,
)
def test_queues_of_applications_have_no_role(queue: Queue) -> None:
    assert roles([queue]) == {queue.name: None}
