"""Selection of the tests that a change touches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ci.changed import TESTS, selection

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["patterns/warren/patterns/saga.py"], ["tests/demo", "tests/house", "tests/patterns"]),
        (["tests/sdk/test_get.py"], ["tests/house", "tests/sdk/test_get.py"]),
        (["tests/sdk/test_get.py", "tests/sdk/conftest.py"], ["tests/house", "tests/sdk"]),
        (["tests/broker/http_api/conftest.py"], ["tests/broker", "tests/house"]),
        (["README.md"], ["tests/house"]),
        (["tests/support/polling.py"], ["tests"]),
        (["pyproject.toml", "patterns/warren/patterns/saga.py"], ["tests"]),
        (["tests/sdk/test_that_was_deleted.py"], ["tests/house"]),
        ([], []),
    ],
)
def test_a_change_selects_the_tests_of_its_packages(changed: list[str], tests: list[str]) -> None:
    assert selection(changed, ROOT) == tests


def test_every_package_has_an_entry_and_every_folder_exists() -> None:
    packages = {path.relative_to(ROOT).parts[0] for path in ROOT.glob("*/warren/*/*.py")}
    assert packages <= TESTS.keys()
    assert [folder for folders in TESTS.values() for folder in folders if not (ROOT / folder).is_dir()] == []
