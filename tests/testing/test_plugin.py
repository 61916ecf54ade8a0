"""Pytest plugin: options, lazy imports, and the example of the documentation."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "test_unpaid_order.py"
# What loads the plugin in a checkout that was installed before it had one.
PLUGIN = () if entry_points(group="pytest11", name="warren") else ("-p", "warren.testing.plugin")
ASYNCIO = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")

ANYIO = """

@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
"""


SETTLES_UNTIL_DEAD_LETTERS = """\
        for _ in range(400):
            if warren.dead_letters:
                break
            await warren.settle()
"""
"""On a live broker, `advance` takes a pause of 0.15 s between two frames for the end."""


def run(test: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest, with every warning an error, on the text of one test file."""
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-P", "-W", "error", "-m", "pytest", "-q", *PLUGIN, *ASYNCIO, *arguments]
    return subprocess.run(
        [*command, "test_it.py"], cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )


def test_the_example_of_the_documentation_passes(tmp_path: Path) -> None:
    done = run(EXAMPLE.read_text(), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_example_passes_on_a_live_broker(tmp_path: Path, amqp_url: str) -> None:
    """The same body of the same test; and anyio's plugin runs it as well.

    Not of those that say that something has not happened yet: on a machine that stands still for a while it has.
    """
    test = EXAMPLE.read_text().replace("async def test", "@pytest.mark.anyio\nasync def test") + ANYIO
    found = "        [dead] = warren.dead_letters\n"
    assert found in test
    test = test.replace(found, f"{SETTLES_UNTIL_DEAD_LETTERS}{found}")
    live = ("--amqp-url", amqp_url, "--time-scale", "600", "-k", "dead_letter")
    done = run(test, tmp_path, *live, "-o", "asyncio_mode=strict")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_a_time_scale_is_a_number_and_needs_a_live_broker(tmp_path: Path) -> None:
    done = run("", tmp_path, "--amqp-url", "amqp://localhost", "--time-scale", "0.5")
    assert (done.returncode, "invalid time_scale value: '0.5'" in done.stderr) == (4, True)
    done = run("", tmp_path, "--time-scale", "600")
    assert (done.returncode, "--amqp-url" in done.stderr) == (4, True)


def test_the_plugin_imports_warren_only_when_used(tmp_path: Path) -> None:
    test = """
import sys
def test_other():
    loaded = {name.partition('.')[0] for name in sys.modules}
    assert not loaded & {'aio_pika', 'aiormq', 'pydantic', 'tenacity', 'opentelemetry'}
    assert not {name for name in sys.modules if name.startswith(('warren.sdk', 'warren.broker'))}
"""
    done = run(test, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
