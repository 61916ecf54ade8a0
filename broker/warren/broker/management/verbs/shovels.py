"""Implementation of the `warren ctl` commands for shovels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.broker.management.items.queue_items import NODE
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json, Request, RequestRefused
from warren.broker.management.verbs.listing import table

if TYPE_CHECKING:
    from warren.broker.management.management import Management
    from warren.broker.shovel.shovels import Shovels

COLUMNS: Final = {
    "name": "name",
    "pending": "pending",
    "type": "type",
    "state": "state",
    "source": "src_uri",
    "destination": "dest_uri",
    "vhost": "vhost",
    "termination_reason": "reason",
    "destination_protocol": "dest_protocol",
    "source_protocol": "src_protocol",
    "last_changed": "timestamp",
    "source_queue": "src_queue",
    "source_exchange": "src_exchange",
    "source_exchange_key": "src_exchange_key",
    "destination_queue": "dest_queue",
    "destination_exchange": "dest_exchange",
    "destination_exchange_key": "dest_exchange_key",
    "remaining": "remaining",
    "remaining_unacked": "remaining_unacked",
    "forwarded": "forwarded",
}
"""Columns of shovel_status, with the fields of the HTTP API that they show."""


def shovel_status(management: Management, _: Request) -> Json:
    rows = [shovel.status() for shovel in management.shovels.all()]
    return table(list(COLUMNS), [[row.get(field, "") for field in COLUMNS.values()] for row in rows])


def delete_shovel(management: Management, request: Request) -> None:
    vhost, name, shovels = _find(management, request)
    shovels.delete(vhost, name, force=request.flag("force"))


def restart_shovel(management: Management, request: Request) -> None:
    vhost, name, shovels = _find(management, request)
    shovels.restart(vhost, name)


def _find(management: Management, request: Request) -> tuple[bytes, str, Shovels]:
    """Return virtual host and name of the shovel of a request, and the shovels of the broker.

    :raises RequestRefused: if there is no such shovel
    """
    vhost, name = request.vhost(management.node).name, request.text("name")
    shovels = management.shovels.running
    if shovels is None or shovels.find(vhost, name) is None:
        raise RequestRefused(
            f"Shovel with the given name was not found on the target node '{NODE}' and / or virtual host "
            f"'{name_text(vhost)}'"
        )
    return vhost, name, shovels
