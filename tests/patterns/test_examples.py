"""The examples of the documentation run as they stand, and print what they promise."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess

EXAMPLES = Path(__file__).parents[2] / "examples"

PROMISED = {
    "unpaid_order": ["order 41: paid in time", "order 42: cancelled", "order 42: paid late, refunded"],
    "once": ["charging for order 42", "receipt for order 42", "receipt for order 42"],
    "delay": ["lamp on", "lamp off"],
}


@pytest.mark.parametrize(
    ("example", "redis"), [("unpaid_order", False), ("unpaid_order", True), ("once", False), ("delay", False)]
)
async def test_an_example_does_what_it_says(
    example: str, redis: bool, broker: BrokerProcess, request: pytest.FixtureRequest
) -> None:
    environment = {**os.environ, "AMQP_URL": broker.url}
    environment.pop("REDIS_URL", None)
    if redis:
        environment["REDIS_URL"] = request.getfixturevalue("redis_url")
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "error", str(EXAMPLES / f"{example}.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == PROMISED[example], ran.stderr
