"""Pytest plugin: the fixture `warren`, coroutine tests that use it, and the options that run the tests on a live broker."""

from __future__ import annotations

from collections.abc import Generator
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from warren.testing.harness import Warren


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("warren")
    group.addoption(
        "--amqp-url",
        metavar="URL",
        default=None,
        help="the broker that the tests run on (default: one in this process, on a virtual clock)",
    )
    group.addoption(
        "--time-scale",
        metavar="N",
        type=time_scale,
        default=1.0,
        help="with --amqp-url: the time passes N times as fast; TTLs and delays are divided by N (default: 1)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "warren: run this coroutine test in an event loop, as those that use the fixture `warren`"
    )
    if config.getoption("--time-scale") != 1 and config.getoption("--amqp-url") is None:
        raise pytest.UsageError(
            "--time-scale is for a live broker: name it with --amqp-url (without, the time is virtual)"
        )


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Mark coroutine tests that use the fixture `warren` for pytest-asyncio if it is active, so that they run in the loop of
    its asynchronous fixtures also in strict mode. The innermost wrapper: pytest-asyncio reads the marker after it."""
    made = yield
    for item in made if isinstance(made, list) else [made]:
        if _is_own(item) and item.config.pluginmanager.hasplugin("asyncio"):
            item.add_marker("asyncio")
    return made


@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test that uses the fixture `warren`, unless another plugin has taken it.

    pytest-asyncio has replaced a coroutine function that it runs; anyio's hook comes first; pytest's own, which refuses
    coroutine functions, comes last.
    """
    if not _is_own(pyfuncitem):
        return None
    import asyncio

    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    with asyncio.Runner() as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


def _is_own(item: object) -> bool:
    """Return True for a coroutine test that uses the fixture `warren`, itself or by another fixture, or has the marker
    `warren`, and that is not marked for another plugin."""
    if not isinstance(item, pytest.Function) or not iscoroutinefunction(item.obj):
        return False
    if "warren" not in item.fixturenames and item.get_closest_marker("warren") is None:
        return False
    return "anyio_backend" not in item.fixturenames and not any(
        item.get_closest_marker(marker) for marker in ("anyio", "asyncio", "trio")
    )


@pytest.fixture(scope="session")
def warren_url(pytestconfig: pytest.Config) -> str | None:
    """Return the URL of the live broker from `--amqp-url`, or None. A conftest.py may override this fixture."""
    url: str | None = pytestconfig.getoption("--amqp-url")
    return url


@pytest.fixture
def warren(warren_url: str | None, pytestconfig: pytest.Config) -> Warren:
    """Return the harness (`Warren`) that runs Apps in a test: `async with warren.running(app):`."""
    from warren.testing.harness import Warren

    return Warren(warren_url, pytestconfig.getoption("--time-scale"))


def time_scale(text: str) -> float:
    scale = float(text)
    if not 1 <= scale < float("inf"):
        raise ValueError
    return scale
