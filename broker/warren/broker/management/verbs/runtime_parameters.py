"""Implementation of the `warren ctl` commands for runtime parameters: global ones, and those of components."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from warren.broker.management.json_encoding import decode
from warren.broker.management.request import Json, Request, RequestRefused
from warren.broker.management.verbs.listing import table

if TYPE_CHECKING:
    from warren.broker.management.management import Management


def _value(request: Request) -> Json:
    value = request.text("value")
    try:
        return decode(value)
    except ValueError as error:
        raise RequestRefused(f"the value is not JSON: {error}") from None


def _shown(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def set_parameter(management: Management, request: Request) -> None:
    """Set a parameter of a component that this broker has.

    Imported definitions may contain parameters of other components; those are stored.
    """
    component = request.text("component")
    if component not in management.parameters.checks:
        raise RequestRefused(f"Validation failed: component {component} not found")
    vhost = request.vhost(management.node)
    management.parameters.set(vhost.name, component, request.text("name"), _value(request))


def clear_parameter(management: Management, request: Request) -> None:
    vhost = request.vhost(management.node)
    management.parameters.clear(vhost.name, request.text("component"), request.text("name"))


def list_parameters(management: Management, request: Request) -> Json:
    vhost = request.vhost(management.node)
    kept = sorted(management.parameters.stored.items())
    return table(
        ["component", "name", "value"],
        [[component, name, _shown(value)] for (of, component, name), value in kept if of == vhost.name],
    )


def set_global_parameter(management: Management, request: Request) -> None:
    management.parameters.set_global(request.text("name"), _value(request))


def clear_global_parameter(management: Management, request: Request) -> None:
    management.parameters.clear_global(request.text("name"))


def list_global_parameters(management: Management, _: Request) -> Json:
    found = sorted(management.parameters.globals.items())
    return table(["name", "value"], [[name, _shown(value)] for name, value in found])


def set_cluster_name(management: Management, request: Request) -> None:
    """Set the global parameter `cluster_name`, as RabbitMQ does."""
    management.parameters.set_global("cluster_name", request.text("name"))
