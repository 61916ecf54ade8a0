"""Tiers of tests: what is known of a module before it is imported."""

from __future__ import annotations

import pytest

from tests.support.tiers import Tier, tier_of_module


@pytest.mark.parametrize(
    ("line", "tier"),
    [
        ("pytestmark = pytest.mark.slow", Tier.ALL),
        ("pytestmark = pytest.mark.processes", Tier.TEST),
        ("pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]", Tier.ALL),
        ("pytestmark = [needs_browser, pytest.mark.processes, pytest.mark.slow]", Tier.ALL),
        ("pytestmark = pytest.mark.timeout(600)", Tier.CHECK),
        ("    pytestmark = pytest.mark.slow", Tier.CHECK),
        ("@pytest.mark.slow", Tier.CHECK),
        (
            'pytestmark = pytest.mark.parametrize("kind", [pytest.param(1, marks=pytest.mark.slow)])',
            Tier.CHECK,
        ),
    ],
)
def test_a_marker_of_the_whole_module_names_its_tier(line: str, tier: Tier) -> None:
    assert tier_of_module(f"import pytest\n\n{line}\n\ndef test_it() -> None: ...\n") is tier
