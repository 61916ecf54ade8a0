"""Garbage collection of `warren broker`: all objects are searched while that is quick, or memory is short."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from warren.cli import garbage_collection
from warren.cli.garbage_collection import FullSearches, collect_when_due

MIB = 1024 * 1024
START = 40 * MIB
LIMIT = 1000 * MIB


def test_the_first_search_is_due_until_32_mib_beyond_the_start() -> None:
    searches = FullSearches(START, LIMIT)
    assert searches.is_due(START)
    assert searches.is_due(START + 32 * MIB)
    assert not searches.is_due(START + 33 * MIB)


def test_a_search_is_due_whatever_it_takes_while_memory_is_short() -> None:
    searches = FullSearches(START, LIMIT)
    assert not searches.is_due(LIMIT - 1)
    assert searches.is_due(LIMIT)


def test_after_a_quick_search_the_next_may_find_more_memory_in_use() -> None:
    """Garbage that came too fast for one search does not end all searches."""
    searches = FullSearches(START, LIMIT)
    searches.note(START + 30 * MIB, 0.005)
    assert searches.is_due(START + 55 * MIB)
    assert not searches.is_due(START + 60 * MIB)


def test_after_a_slow_search_the_next_waits_until_memory_is_as_at_the_start() -> None:
    searches = FullSearches(START, LIMIT)
    searches.note(LIMIT, 0.7)
    assert not searches.is_due(LIMIT - MIB)
    assert not searches.is_due(START + 33 * MIB)
    assert searches.is_due(START + 32 * MIB)


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
