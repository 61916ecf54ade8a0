"""The verbs that export and import definitions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from warren.broker.management.definitions_export import exported
from warren.broker.management.definitions_import import take_in
from warren.broker.management.health import own_version
from warren.broker.management.request import Json, Request

if TYPE_CHECKING:
    from warren.broker.management.management import Management

SLICE: Final = 100
"""How many definitions are taken in before the loop gets its turn: some milliseconds."""


def export_definitions(management: Management, _: Request) -> Json:
    return exported(management.holdings, own_version())


async def import_definitions(management: Management, request: Request) -> None:
    for index, _ in enumerate(take_in(request.value("definitions"), management.holdings)):
        if index % SLICE == SLICE - 1:
            await asyncio.sleep(0)
