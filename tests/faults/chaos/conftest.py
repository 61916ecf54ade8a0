"""Fixture of the tests of the checker."""

from __future__ import annotations

import pytest

from tests.faults.chaos.history_builder import HistoryBuilder


@pytest.fixture
def history() -> HistoryBuilder:
    return HistoryBuilder()
