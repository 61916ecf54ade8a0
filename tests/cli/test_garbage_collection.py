"""Garbage collection of `warren broker`: all objects are searched while that is quick, or memory is short."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from warren.cli import garbage_collection
from warren.cli.garbage_collection import CHEAP_GROWTH, collect_when_due, is_collection_due

START = 30_000_000
LIMIT = 1_000_000_000


@pytest.mark.parametrize(
    ("resident", "due"),
    [
        (START, True),
        (START + CHEAP_GROWTH, True),
        (START + CHEAP_GROWTH + 1, False),
        (LIMIT - 1, False),
        (LIMIT, True),
    ],
)
def test_a_search_of_all_objects_is_due_while_it_is_quick_or_memory_is_short(
    resident: int, due: bool
) -> None:
    assert is_collection_due(resident, START, LIMIT) is due


class Node:
    """An object that refers to itself, so that only the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize(("setting", "value"), [("INTERVAL", 0.0), ("SURVIVORS", 0)])
async def test_objects_in_cycles_are_freed(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: float
) -> None:
    """All objects are searched after the interval, and earlier if many have survived."""
    monkeypatch.setattr(garbage_collection, "CHECK_INTERVAL", 0.0)
    monkeypatch.setattr(garbage_collection, setting, value)
    # Only the search that is under test frees the object. It is due whatever memory this process has.
    gc.disable()
    try:
        node = weakref.ref(Node())
        collecting = asyncio.create_task(collect_when_due(0))
        while node() is not None:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0)
        collecting.cancel()
    finally:
        gc.enable()
