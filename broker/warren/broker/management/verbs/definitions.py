"""Implementation of the `warren ctl` commands that export and import definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.management.definitions_export import export_in_steps
from warren.broker.management.definitions_import import import_in_steps
from warren.broker.management.request import Json, Request
from warren.broker.management.time_slices import run_in_slices
from warren.broker.management.verbs.health import own_version

if TYPE_CHECKING:
    from warren.broker.management.management import Management


async def export_definitions(management: Management, _: Request) -> Json:
    return await run_in_slices(export_in_steps(management.metadata, own_version()))


async def import_definitions(management: Management, request: Request) -> None:
    stored = management.node.definitions
    work = import_in_steps(request.value("definitions"), management.metadata)
    await run_in_slices(work, None if stored is None else stored.catch_up)
