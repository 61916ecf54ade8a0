"""Demo: a small run through every component, with a killed broker."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from warren.demo.main import run_demo
from warren.demo.orders import sample
from warren.demo.replay import ReplayPlan
from warren.demo.verdict import Verdict

pytestmark = pytest.mark.slow

ORDERS = 300


def run(folder: Path) -> Verdict:
    plan = ReplayPlan(span=6.0, speed=600.0, timeout=timedelta(minutes=30))
    return asyncio.run(run_demo(sample(ORDERS), plan, True, folder))


@pytest.mark.timeout(600)
def test_no_order_is_lost_or_decided_twice_when_the_broker_is_killed(tmp_path: Path) -> None:
    # A separate process, because Spark allows one context in each, and other tests have theirs.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        verdict = pool.submit(run, tmp_path).result()
    assert verdict.wrong == {}
    assert verdict.right > 0
    assert verdict.right + verdict.unjudged == ORDERS
    assert (tmp_path / "report.html").stat().st_size > 0
