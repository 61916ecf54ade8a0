"""The verbs that export and import definitions."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Final, TypeVar

from warren.broker.management.definitions_export import exporting
from warren.broker.management.definitions_import import take_in
from warren.broker.management.request import Json, Request
from warren.broker.management.verbs.health import own_version

if TYPE_CHECKING:
    from warren.broker.management.management import Management

Result = TypeVar("Result")

SLICE: Final = 100
"""How many definitions are taken in before the loop gets its turn: some milliseconds."""


async def export_definitions(management: Management, _: Request) -> Json:
    return await in_slices(exporting(management.holdings, own_version()))


async def import_definitions(management: Management, request: Request) -> None:
    await in_slices(take_in(request.value("definitions"), management.holdings))


async def in_slices(work: Generator[None, None, Result]) -> Result:
    """Do it bit by bit: its result."""
    while True:
        try:
            for _ in range(SLICE):
                next(work)
        except StopIteration as done:
            result: Result = done.value
            return result
        await asyncio.sleep(0)
