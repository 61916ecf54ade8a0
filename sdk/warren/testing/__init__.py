"""Tests that read like the story: Apps on a broker in this process, on a clock that the test moves.

The pytest plugin brings the fixture `warren`; nothing of Warren is imported before a test asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warren.testing.dead_letters import DeadLettered
    from warren.testing.harness import Warren

__all__ = ["DeadLettered", "Warren"]


def __getattr__(name: str) -> object:
    # pytest imports this package at its start, for everybody; what costs time waits for who needs it.
    if name == "Warren":
        from warren.testing.harness import Warren

        return Warren
    if name == "DeadLettered":
        from warren.testing.dead_letters import DeadLettered

        return DeadLettered
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
