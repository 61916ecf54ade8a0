"""Implementation of the `warren ctl` commands that export and import definitions."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Final, TypeVar

from warren.broker.management.definitions_export import export_in_steps
from warren.broker.management.definitions_import import import_in_steps
from warren.broker.management.request import Json, Request
from warren.broker.management.verbs.health import own_version

if TYPE_CHECKING:
    from warren.broker.management.management import Management

Result = TypeVar("Result")

DEFINITIONS_PER_TURN: Final = 100
"""Definitions that are processed in a row before the event loop runs again; they take a few milliseconds."""


async def export_definitions(management: Management, _: Request) -> Json:
    return await run_in_slices(export_in_steps(management.metadata, own_version()))


async def import_definitions(management: Management, request: Request) -> None:
    await run_in_slices(import_in_steps(request.value("definitions"), management.metadata))


async def run_in_slices(work: Generator[None, None, Result]) -> Result:
    """Run an export or import generator to its end, and return the value that it returns.

    After every `DEFINITIONS_PER_TURN` steps it lets the event loop run, so that clients are served meanwhile.
    """
    while True:
        try:
            for _ in range(DEFINITIONS_PER_TURN):
                next(work)
        except StopIteration as done:
            result: Result = done.value
            return result
        await asyncio.sleep(0)
