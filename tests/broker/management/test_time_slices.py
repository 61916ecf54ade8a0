"""Management work in slices: work that is done at once takes turns, so that an iteration of the event loop stays short."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from warren.broker.management import time_slices
from warren.broker.management.time_slices import run_in_slices

STEPS = 10
WORKS = 5


class Iterations:
    """Counter of the iterations of the running event loop."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self) -> None:
        """Count this iteration and all later ones."""
        self.count += 1
        asyncio.get_running_loop().call_soon(self.begin)


def test_an_iteration_of_the_loop_has_one_slice_of_all_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", 0.0)
    taken: list[tuple[int, int]] = []
    iterations = Iterations()

    def work(name: int) -> Generator[None, None, int]:
        for _ in range(STEPS):
            taken.append((iterations.count, name))
            yield
        return name

    async def run() -> list[int]:
        iterations.begin()
        return await asyncio.gather(*(run_in_slices(work(name)) for name in range(WORKS)))

    assert asyncio.run(run()) == list(range(WORKS))
    turns = [turn for turn, _ in taken]
    assert len(set(turns)) == len(turns) == WORKS * STEPS
    # Each has its turn before one has a second one.
    assert {name for _, name in taken[:WORKS]} == set(range(WORKS))


def test_work_that_fails_or_is_cancelled_lets_the_others_go_on() -> None:
    def failing() -> Generator[None, None, None]:
        yield
        raise ValueError("failed")

    def endless() -> Generator[None, None, None]:
        while True:
            yield

    def short() -> Generator[None, None, str]:
        yield
        return "done"

    async def run() -> None:
        forever = asyncio.ensure_future(run_in_slices(endless()))
        with pytest.raises(ValueError, match="failed"):
            await run_in_slices(failing())
        assert await run_in_slices(short()) == "done"
        forever.cancel()
        assert await run_in_slices(short()) == "done"

    asyncio.run(run())


def test_works_of_one_request_have_no_slice_each_in_one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that goes on with its next work when one has ended waits for the next iteration of the loop."""
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", 0.0)
    taken: list[int] = []
    iterations = Iterations()

    def work() -> Generator[None, None, None]:
        taken.append(iterations.count)
        yield from ()

    async def run() -> None:
        iterations.begin()
        for _ in range(WORKS):
            await run_in_slices(work())

    asyncio.run(run())
    assert len(set(taken)) == len(taken) == WORKS
