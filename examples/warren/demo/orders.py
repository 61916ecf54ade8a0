"""Orders of the demo: read from a CSV file, or generated from a seed."""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from warren.core.errors import UsageError

COLUMNS = ("order_id", "status", "placed_at", "paid_at")
SAMPLE_SIZE = 2000
"""Number of generated orders, by default."""
SAMPLE_SEED = 20160904


@dataclass(frozen=True, slots=True)
class Order:
    """Order of a customer. `paid_at` is None if it was never paid."""

    order_id: str
    placed_at: datetime
    paid_at: datetime | None

    @property
    def delay(self) -> timedelta | None:
        """Time from the order to its payment; None if it was never paid."""
        return None if self.paid_at is None else self.paid_at - self.placed_at


def read_orders(path: Path) -> list[Order]:
    """Read the orders of a CSV file with the columns order_id, status, placed_at and paid_at.

    Times are ISO 8601; without a time zone they are UTC.

    :raises UsageError: if the file is missing or malformed; the error names the line
    """
    orders: dict[str, Order] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file, strict=True)
            missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
            if missing:
                raise UsageError(
                    f"{path}, line 1: column {missing[0]!r} is missing; the first line must name "
                    f"{', '.join(COLUMNS)}"
                )
            for row in rows:
                order = _read_row(row, f"{path}, line {rows.line_num}")
                if order.order_id in orders:
                    raise UsageError(f"{path}, line {rows.line_num}: order {order.order_id} occurs twice")
                orders[order.order_id] = order
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}; give --file a CSV with {', '.join(COLUMNS)}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    except csv.Error as error:
        raise UsageError(f"{path}, line {rows.reader.line_num}: {error}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if not orders:
        raise UsageError(f"{path} has no orders: it ends after its first line")
    return list(orders.values())


def _read_row(row: dict[str, str | None], where: str) -> Order:
    values = [row[column] for column in COLUMNS]
    if None in values or None in row:
        raise UsageError(f"{where}: the number of fields differs from the first line")
    order_id = row["order_id"]
    if not order_id:
        raise UsageError(f"{where}: order_id is empty")
    placed_at = _time(row["placed_at"], "placed_at", where)
    if placed_at is None:
        raise UsageError(f"{where}: placed_at is empty")
    paid_at = _time(row["paid_at"], "paid_at", where)
    if paid_at is not None and paid_at < placed_at:
        raise UsageError(f"{where}: order {order_id} is paid before it is placed")
    return Order(order_id, placed_at, paid_at)


def _time(text: str | None, column: str, where: str) -> datetime | None:
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{where}: {column} is {text!r}; it must have the form 2018-01-31T23:59:00"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def sample(size: int = SAMPLE_SIZE, seed: int = SAMPLE_SEED) -> list[Order]:
    """Generate `size` orders; the same seed always gives the same orders.

    As with real customers, most are paid within half an hour, some much later, and a few never.
    """
    choose = random.Random(seed)
    placed_at = datetime(2026, 1, 5, 8, tzinfo=UTC)
    orders = []
    for _ in range(size):
        placed_at += timedelta(seconds=choose.randint(5, 90))
        kind = choose.random()
        if kind < 0.62:
            delay = timedelta(minutes=choose.gammavariate(3.2, 4.5))
        elif kind < 0.97:
            delay = timedelta(minutes=choose.lognormvariate(5.2, 1.4))
        else:
            orders.append(Order(f"{choose.getrandbits(64):016x}", placed_at, None))
            continue
        paid_at = placed_at + timedelta(seconds=round(delay.total_seconds()))
        orders.append(Order(f"{choose.getrandbits(64):016x}", placed_at, paid_at))
    return orders
