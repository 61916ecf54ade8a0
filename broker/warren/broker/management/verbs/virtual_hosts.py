"""Implementation of the `warren ctl` commands for virtual hosts and their limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from warren.broker.management.limits_json import format_limits, parse_limits, present_limits
from warren.broker.management.request import Json, Request
from warren.broker.management.tracing import start_tracing, stop_tracing
from warren.broker.management.verbs.listing import select_columns, table
from warren.broker.model.vhost.vhost_settings import VirtualHostSettings

if TYPE_CHECKING:
    from warren.broker.management.management import Management

LIMITS: Final = ("max-connections", "max-queues")

ITEMS: Final[Mapping[str, Callable[[VirtualHostSettings], Json]]] = {
    "name": lambda settings: settings.name,
    "cluster_state": lambda _: "running",
    "description": lambda settings: settings.description,
    "tags": lambda settings: list(settings.tags),
    "default_queue_type": lambda settings: settings.default_queue_type or "undefined",
    "protected_from_deletion": lambda settings: settings.protected,
    "metadata": lambda settings: {"description": settings.description, "tags": list(settings.tags)},
}


def _tags(request: Request) -> tuple[str, ...]:
    return tuple(tag.strip() for tag in request.text("tags", "").split(",") if tag.strip())


def add_vhost(management: Management, request: Request) -> None:
    """Add a virtual host. As in RabbitMQ, an existing one stays unchanged."""
    hosts = management.node.virtual_hosts
    if request.text("name") not in hosts:
        hosts.add(
            request.text("name"),
            description=request.text("description", ""),
            tags=_tags(request),
            default_queue_type=request.text("default_queue_type", ""),
        )


def update_vhost_metadata(management: Management, request: Request) -> None:
    """Update description, tags and default queue type of a virtual host; those not in the request stay unchanged."""
    management.node.virtual_hosts.update(
        request.text("name"),
        description=request.text("description") if request.has("description") else None,
        tags=_tags(request) if request.has("tags") else None,
        default_queue_type=request.text("default_queue_type") if request.has("default_queue_type") else None,
    )


def set_vhost_tags(management: Management, request: Request) -> None:
    management.node.virtual_hosts.update(request.text("name"), tags=request.texts("tags"))


def enable_vhost_protection_from_deletion(management: Management, request: Request) -> None:
    management.node.virtual_hosts.update(request.text("name"), protected=True)


def disable_vhost_protection_from_deletion(management: Management, request: Request) -> None:
    management.node.virtual_hosts.update(request.text("name"), protected=False)


async def delete_vhost(management: Management, request: Request) -> None:
    """Delete a virtual host; return when all its queues are deleted."""
    hosts = management.node.virtual_hosts
    hosts.delete(request.text("name"))
    await hosts.bulk_work.finished(hosts.deletion_lane(request.text("name")))


def trace_on(management: Management, request: Request) -> Json:
    """Start tracing in a virtual host. As in RabbitMQ, it ends with the broker."""
    vhost = request.vhost(management.node)
    start_tracing(vhost, management.node.loop)
    return f"Trace enabled for vhost {request.text('vhost', '/')}"


def trace_off(management: Management, request: Request) -> Json:
    stop_tracing(request.vhost(management.node))
    return f"Trace disabled for vhost {request.text('vhost', '/')}"


def list_vhosts(management: Management, request: Request) -> Json:
    hosts = management.node.virtual_hosts

    def is_traced(settings: VirtualHostSettings) -> Json:
        return hosts.declarations_of(settings.name).vhost.firehose is not None

    items = {**ITEMS, "tracing": is_traced}
    columns, names = select_columns(request, items, ("name",))
    return table(columns, [[items[name](settings) for name in names] for settings in hosts.all()])


def vhost_limits(settings: VirtualHostSettings) -> dict[str, int]:
    return present_limits(max_connections=settings.max_connections, max_queues=settings.max_queues)


def set_vhost_limits(management: Management, request: Request) -> None:
    """Replace all limits of a virtual host; limits that the request does not contain are removed."""
    found = parse_limits(request.value("definition"), LIMITS, "limits")
    management.node.virtual_hosts.set_limits(
        request.text("vhost", "/"),
        max_connections=found.get("max-connections"),
        max_queues=found.get("max-queues"),
    )


def clear_vhost_limits(management: Management, request: Request) -> None:
    management.node.virtual_hosts.set_limits(
        request.text("vhost", "/"), max_connections=None, max_queues=None
    )


def list_vhost_limits(management: Management, request: Request) -> Json:
    """List the limits of one virtual host, or of all that have limits."""
    hosts = management.node.virtual_hosts
    if not request.flag("global"):
        found = vhost_limits(hosts.settings(request.text("vhost", "/")))
        return format_limits(found) if found else None
    return table(
        ["vhost", "limits"],
        [[each.name, format_limits(vhost_limits(each))] for each in hosts.all() if vhost_limits(each)],
    )
