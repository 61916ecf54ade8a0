"""Messages of a workflow about orders, and the numbers that the job must find, computed in plain Python."""

from __future__ import annotations

import csv
import json
import random
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pika

from tests.spark.conftest import Message

TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class Order:
    order_id: str
    placed_at: datetime
    paid_at: datetime | None


def generated(count: int, seed: int) -> list[Order]:
    """Generate orders: some are paid at once, some around the timeout (also exactly at it), some days later, some never."""
    draw = random.Random(seed)
    start = datetime(2024, 3, 30, 22, 0)
    orders = []
    for number in range(count):
        placed_at = start + timedelta(minutes=number)
        kind = draw.random()
        if kind < 0.05:
            delay = None
        elif kind < 0.15:
            delay = timedelta(minutes=draw.choice([0, 10, 20, 29, 30, 31, 60, 120]))
        elif kind < 0.7:
            delay = timedelta(minutes=draw.randrange(0, 40))
        else:
            delay = timedelta(minutes=draw.randrange(40, 20_000))
        orders.append(Order(f"{number:06x}", placed_at, None if delay is None else placed_at + delay))
    return orders


def from_file(path: Path) -> list[Order]:
    with path.open(newline="") as file:
        return [
            Order(
                row["order_id"],
                datetime.fromisoformat(row["placed_at"]),
                datetime.fromisoformat(row["paid_at"]) if row["paid_at"] else None,
            )
            for row in csv.DictReader(file)
        ]


def workflow_message(kind: str, order_id: str, message_id: str | None = None, **times: datetime) -> Message:
    """Return a message of the workflow, as the SDK writes it."""
    body = {"order_id": order_id, **{name: at.isoformat() for name, at in times.items()}}
    properties = pika.BasicProperties(
        type=kind,
        message_id=message_id or str(uuid.uuid4()),
        content_type="application/json",
        delivery_mode=2,
    )
    return Message(json.dumps(body).encode(), properties)


def messages_of_order(order: Order, timeout: timedelta = TIMEOUT) -> list[Message]:
    """Return the messages of the workflow about an order, in the order of time."""
    messages = [workflow_message("order_placed", order.order_id, placed_at=order.placed_at)]
    if order.paid_at is None:
        return [*messages, workflow_message("cancel_order", order.order_id)]
    paid = workflow_message("order_paid", order.order_id, paid_at=order.paid_at)
    if order.paid_at - order.placed_at <= timeout:
        return [*messages, paid]
    return [
        *messages,
        workflow_message("order_cancelled", order.order_id),
        paid,
        workflow_message("order_refunded", order.order_id),
    ]


def expected(orders: Iterable[Order], timeouts: Sequence[int]) -> dict[str, Any]:
    """Compute the job's numbers without Spark. `timeouts` is in seconds."""
    delays = sorted((o.paid_at - o.placed_at).total_seconds() for o in orders if o.paid_at is not None)
    never = sum(o.paid_at is None for o in orders)
    in_time = {each: sum(delay <= each for delay in delays) for each in timeouts}
    return {
        "payments": len(delays),
        "cancelled": never,
        "paid_in_time": sum(delay <= TIMEOUT.total_seconds() for delay in delays),
        "paid_late": sum(delay > TIMEOUT.total_seconds() for delay in delays),
        "recount": [(each, in_time[each], len(delays) - in_time[each], never) for each in timeouts],
        "quantile": lambda level: quantile(delays, level),
        "minimum": delays[0],
        "maximum": delays[-1],
        "mean": sum(delays) / len(delays),
        "delays": delays,
    }


def quantile(values: Sequence[float], level: float) -> float:
    """Interpolate linearly between the two neighbours of rank level * (n - 1)."""
    rank = level * (len(values) - 1)
    below = int(rank)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (rank - below)


def histogram(delays: Sequence[float], edges: Sequence[int]) -> dict[int | None, int]:
    """Return counts by upper edge; None is unbounded."""
    counts: dict[int | None, int] = defaultdict(int)
    for delay in delays:
        counts[next((edge for edge in edges if delay <= edge), None)] += 1
    return counts
