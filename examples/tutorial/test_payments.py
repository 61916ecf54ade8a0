"""Half an hour in milliseconds: the broker, the deadline and the retries follow the test's clock."""

from datetime import timedelta
from pathlib import Path

import pytest

from orders import OrderPlaced
from payments import CancelOrder, OrderPaid, payments
from warren.patterns import SqliteStore
from warren.sdk import App
from warren.testing import Warren


@pytest.fixture
def app(tmp_path: Path) -> App:
    return payments(SqliteStore(tmp_path / "decisions.sqlite"), timedelta(minutes=30))


async def test_an_unpaid_order_is_cancelled(warren: Warren, app: App) -> None:
    async with warren.running(app):
        await warren.publish(OrderPlaced(order_id="42", email="ann@example.com"))
        await warren.advance(minutes=29)
        assert warren.handled(CancelOrder) == []
        await warren.advance(minutes=1)
        assert warren.handled(CancelOrder) == [CancelOrder(order_id="42")]


async def test_a_paid_order_is_not_cancelled(warren: Warren, app: App) -> None:
    async with warren.running(app):
        await warren.publish(OrderPlaced(order_id="42", email="ann@example.com"))
        await warren.advance(minutes=29)
        await warren.publish(OrderPaid(order_id="42"))
        await warren.advance(minutes=30)
        assert warren.handled(CancelOrder) == []
