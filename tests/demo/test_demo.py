"""The main job in small: every component, a killed broker, and each order accounted for."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

from warren.demo.command import work
from warren.demo.orders import sample
from warren.demo.replay import Plan


@pytest.mark.timeout(180)
async def test_no_order_is_lost_or_decided_twice_when_the_broker_is_killed(tmp_path: Path) -> None:
    orders = sample(300)
    plan = Plan(span=6.0, speed=600.0, timeout=timedelta(minutes=30))
    verdict = await work(orders, plan, True, tmp_path, Console(stderr=True))
    assert verdict.wrong == {}
    assert verdict.right > 0
    assert verdict.right + verdict.left_out == len(orders)
    assert (tmp_path / "report.html").stat().st_size > 0
