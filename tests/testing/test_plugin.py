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
REPLACED_STORE = ROOT / "examples" / "test_replaced_store.py"
# What loads the plugin in a checkout that was installed before it had one.
PLUGIN = () if entry_points(group="pytest11", name="warren") else ("-p", "warren.testing.plugin")
UNSET_LOOP_SCOPE = "ignore:The configuration option"
"""pytest-asyncio warns in a project without configuration."""

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
    warnings = ("-W", "error", "-W", UNSET_LOOP_SCOPE)
    command = [sys.executable, "-P", *warnings, "-m", "pytest", "-q", *PLUGIN, *arguments]
    return subprocess.run(
        [*command, "test_it.py"], cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )


def test_the_example_of_the_documentation_passes(tmp_path: Path) -> None:
    done = run(EXAMPLE.read_text(), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_example_of_a_replaced_store_passes(tmp_path: Path) -> None:
    done = run(REPLACED_STORE.read_text(), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_example_passes_on_a_live_broker(tmp_path: Path, amqp_url: str) -> None:
    """The same body of the same test; and anyio's plugin runs it as well.

    Not of those that say that something has not happened yet: on a machine that stands still for a while it has.
    """
    test = EXAMPLE.read_text().replace("async def test", "@pytest.mark.anyio\nasync def test") + ANYIO
    found = "        [dead] = warren.dead_letters\n"
    assert found in test
    test = test.replace(found, f"{SETTLES_UNTIL_DEAD_LETTERS}{found}")
    live = ("--amqp-url", amqp_url, "--time-scale", "600", "-k", "dead_letter")
    done = run(test, tmp_path, *live)
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


INDIRECT = """
import asyncio, inspect, os, pytest

pytestmark = pytest.mark.filterwarnings("error")
LOOPS = []

@pytest.fixture
def shop(warren):
    return warren

async def test_by_fixture(warren):
    LOOPS.append(asyncio.get_running_loop())
    async with warren.running():
        await warren.advance(minutes=30)

async def test_by_another_fixture(shop):
    async with shop.running():
        await shop.advance("30m")

class TestClass:
    @pytest.mark.parametrize("number", [1, 2])
    async def test_method(self, warren, number):
        async with warren.running():
            assert number in (1, 2)

@pytest.mark.warren
async def test_by_marker():
    await asyncio.sleep(0)

@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
async def test_failure_is_reported(warren):
    1 / 0
"""
OWN_FIXTURE = """
import pytest_asyncio

@pytest_asyncio.fixture
async def loop_of_fixture():
    return asyncio.get_running_loop()

async def test_shares_the_loop_of_asynchronous_fixtures(warren, loop_of_fixture):
    assert asyncio.get_running_loop() is loop_of_fixture
"""
ANYIO_TEST = """
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_of_anyio(warren, anyio_backend):
    async with warren.running():
        await warren.settle()
"""


@pytest.mark.parametrize(
    ("options", "more", "passed"),
    [
        pytest.param((), OWN_FIXTURE, 6, id="pytest-asyncio, strict, no configuration"),
        pytest.param(
            ("-o", "asyncio_mode=auto"), OWN_FIXTURE, 6, id="pytest-asyncio, auto", marks=pytest.mark.slow
        ),
        pytest.param(("-p", "no:asyncio", "-p", "no:anyio"), "", 5, id="no plugin", marks=pytest.mark.slow),
        pytest.param(("-p", "no:asyncio"), ANYIO_TEST, 6, id="anyio", marks=pytest.mark.slow),
        pytest.param((), ANYIO_TEST, 6, id="anyio and pytest-asyncio", marks=pytest.mark.slow),
        pytest.param(
            ("-o", "anyio_mode=auto", "-p", "no:asyncio", "-k", "not marker and not failure"),
            ANYIO,
            4,
            id="anyio, auto",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_coroutine_tests_need_no_configuration(
    tmp_path: Path, options: tuple[str, ...], more: str, passed: int
) -> None:
    done = run(INDIRECT + more, tmp_path, "--strict-markers", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout


def test_coroutine_tests_of_others_are_left_alone(tmp_path: Path) -> None:
    done = run("async def test_other(): ...\n", tmp_path, "-p", "no:asyncio", "-p", "no:anyio")
    assert done.returncode == 1, done.stdout
    assert "async def functions are not natively supported" in done.stdout
