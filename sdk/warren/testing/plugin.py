"""The pytest plugin: the fixture `warren`, and the options that send the same tests to a live broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from warren.testing.story import Warren


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("warren").addoption(
        "--amqp-url",
        metavar="URL",
        default=None,
        help="the broker that the tests run on (default: one in this process, on a virtual clock)",
    )


@pytest.fixture
def warren() -> Warren:
    """Apps under test, the broker that they run on, and its time: `async with warren.running(app):`."""
    from warren.testing.story import Warren

    return Warren()
