"""Test support: run Apps on a broker in the test's process, on a virtual clock.

The pytest plugin provides the fixture `warren`. It imports the rest of Warren when a test first uses the fixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warren.testing.dead_letters import DeadLettered
    from warren.testing.harness import Warren

__all__ = ["DeadLettered", "Warren"]


def __getattr__(name: str) -> object:
    # pytest imports this package in every test run of the environment; the expensive imports wait until they are needed.
    if name == "Warren":
        from warren.testing.harness import Warren

        return Warren
    if name == "DeadLettered":
        from warren.testing.dead_letters import DeadLettered

        return DeadLettered
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
