"""Pytest plugin: the fixture `warren`, and the options that run the tests on a live broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    if config.getoption("--time-scale") != 1 and config.getoption("--amqp-url") is None:
        raise pytest.UsageError(
            "--time-scale is for a live broker: name it with --amqp-url (without, the time is virtual)"
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
