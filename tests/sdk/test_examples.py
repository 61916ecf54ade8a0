"""The examples of the SDK run as they stand, and print what they promise."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# Sorted: what two handlers print has no order between them.
PROMISED = {
    "hello": ["billed 42"],
    "rpc": ["a lamp is 9.90", "no reply; it may have been handled: True", "unknown_sku: there is no desk"],
    "publish": [
        "confirmed: 100",
        "dead: ValueError: nothing to ship",
        "refused; worth trying again: True",
        "unroutable: 312 unknown",
    ],
}


@pytest.mark.parametrize("example", PROMISED)
async def test_an_example_does_what_it_says(example: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "AMQP_URL"}
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "error", str(EXAMPLES / f"{example}.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == PROMISED[example], ran.stderr
