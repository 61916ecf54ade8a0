"""Fixture that ends the runs of the log that a test leaves open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.store.log_run import LogRun


@pytest.fixture(autouse=True)
def end_nodes() -> Iterator[None]:
    yield
    for run in list(LogRun.running):
        run.kill()
