"""Tiers of tests: which tests run with `make check`, `make test` and `make test-all`.

A test belongs to the lowest tier that has what it needs. Its fixtures and their parameters show that; a test that starts a
process itself carries a marker. A test of tier `check` that starts a process fails, whichever tier runs.
"""

from __future__ import annotations

import enum
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest


class Tier(enum.IntEnum):
    """Tiers in ascending order; each includes those before it."""

    CHECK = 0
    """No process is started: pure code, brokers in the test's process, SQLite."""
    TEST = 1
    """One server of each kind is shared by many tests: broker, Redis, PostgreSQL, Spark."""
    ALL = 2
    """Kills, RabbitMQ, clusters, long programs, models in full."""


MARKERS: Final = {
    "processes": Tier.TEST,
    "slow": Tier.ALL,
}
"""Markers by which a test names its tier itself."""

FIXTURES: Final = {
    "starts_processes": Tier.TEST,
    "amqp_url": Tier.TEST,
    "broker": Tier.TEST,
    "redis_url": Tier.TEST,
    "postgres_url": Tier.TEST,
    "spark": Tier.TEST,
    "operator": Tier.TEST,
    "rabbitmq": Tier.ALL,
    "fresh_rabbitmq": Tier.ALL,
    "rabbit": Tier.ALL,
    "prometheus": Tier.ALL,
    "host": Tier.ALL,
    "mortal_broker": Tier.ALL,
    "mortal_postgres": Tier.ALL,
    "cluster": Tier.ALL,
}
"""Fixtures that start processes; those of one module or folder request `starts_processes`."""

PARAMETERS: Final = {
    "redis": Tier.TEST,
    "postgres": Tier.TEST,
    "s3": Tier.TEST,
    "rabbit": Tier.ALL,
    "rabbitmq": Tier.ALL,
}
"""Parameters for which a fixture, or a test, asks for the server of that name when it runs."""

EXAMPLES: Final = {Tier.CHECK: 10, Tier.TEST: 40, Tier.ALL: 10_000}
"""At most so many examples of each property that Hypothesis tests."""

_chosen = Tier.ALL


def choose(name: str) -> Tier:
    """Make the tier of that name (lower case) the one that runs, and return it."""
    global _chosen
    _chosen = Tier[name.upper()]
    return _chosen


def chosen() -> Tier:
    """Return the tier that runs."""
    return _chosen


def examples(number: int) -> int:
    """Return how many examples a property with `number` examples in tier `all` has in the chosen tier."""
    return min(number, EXAMPLES[_chosen])


def cases(numbers: range) -> range:
    """Return the whole range in tier `all`, and every seventh number of it in the tiers below."""
    return numbers if _chosen is Tier.ALL else numbers[::7]


def is_sampled_out(item: pytest.Item, counts: Counter[str]) -> bool:
    """Return whether the marker `sampled` leaves a test out of the chosen tier.

    :param counts: number of parameter sets so far of each test with the marker; it is counted up
    """
    mark = item.get_closest_marker("sampled")
    if mark is None or _chosen is Tier.ALL:
        return False
    name = item.nodeid.partition("[")[0]
    counts[name] += 1
    return (counts[name] - 1) % int(mark.args[0]) != 0


def tier_of(item: pytest.Item) -> Tier:
    """Return the lowest tier that has what the test needs."""
    tiers = [tier for name, tier in MARKERS.items() if item.get_closest_marker(name)]
    tiers += [FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in FIXTURES]
    callspec = getattr(item, "callspec", None)
    if callspec is not None:
        tiers += [
            PARAMETERS[value]
            for value in callspec.params.values()
            if isinstance(value, str) and value in PARAMETERS
        ]
    return max(tiers, default=Tier.CHECK)


def tier_of_module(text: str) -> Tier:
    """Return the lowest tier that all tests of a module need, as the line `pytestmark = ...` of its text shows."""
    found = re.search(
        r"^pytestmark = (?:pytest\.mark\.\w+|\[pytest\.mark\..*\]|\[needs_\w+, .*\])$", text, re.MULTILINE
    )
    names = re.findall(r"pytest\.mark\.(\w+)", found[0]) if found is not None else []
    return max((MARKERS[name] for name in names if name in MARKERS), default=Tier.CHECK)


class ProcessGuard:
    """Makes it an error for a test of tier `check` to start a process."""

    def __init__(self) -> None:
        self.test_runs = False
        # An audit hook cannot be removed: it looks whether a test runs.
        sys.addaudithook(self._refuse)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Refuse processes while a test of tier `check` runs, with its fixtures."""
        self.test_runs = tier_of(item) is Tier.CHECK
        try:
            return (yield)
        finally:
            self.test_runs = False

    def _refuse(self, event: str, arguments: tuple[object, ...]) -> None:
        starts = event in {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system"}
        # The tests of the house list the files of the checkout.
        if self.test_runs and starts and arguments[:1] != ("git",):
            raise RuntimeError("a test of tier `check` starts a process: mark it with pytest.mark.processes")
