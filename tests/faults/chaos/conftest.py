"""A history to tell."""

from __future__ import annotations

import pytest

from tests.faults.chaos.story import Story


@pytest.fixture
def story() -> Story:
    return Story()
