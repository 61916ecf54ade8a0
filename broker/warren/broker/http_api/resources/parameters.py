"""Runtime parameters: those of components in virtual hosts, and global ones."""

from __future__ import annotations

import json

from warren.broker.http_api.api_error import bad_request, object_not_found
from warren.broker.http_api.call import CREATED, NO_CONTENT, Call, Response
from warren.broker.http_api.caller import ADMINISTRATOR
from warren.broker.http_api.listing_response import list_rows
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json
from warren.broker.management.verbs import policies as policy_verbs
from warren.broker.management.verbs import runtime_parameters as parameter_verbs
from warren.broker.management.verbs import virtual_hosts as vhost_verbs
from warren.broker.management.verbs.virtual_hosts import vhost_limits
from warren.broker.model.policy.runtime_parameters import OPERATOR_POLICY, SHOVEL

LIMITS = "vhost-limits"


def _row(vhost: str, component: str, name: str, value: Json) -> Json:
    return {"value": value, "vhost": vhost, "component": component, "name": name}


def _all(call: Call) -> list[Json]:
    found = []
    for topology in call.all_visible():
        vhost = name_text(topology.vhost.name)
        for name, policy in sorted(topology.vhost.policies.operator.items()):
            found.append(_row(vhost, OPERATOR_POLICY, name, policy.to_value()))
        limits = vhost_limits(topology.settings)
        if limits:
            found.append(_row(vhost, LIMITS, "limits", limits))
        for (of, component, name), value in sorted(
            call.management.parameters.stored.items(), key=lambda kept: kept[0]
        ):
            if of == topology.vhost.name:
                found.append(_row(vhost, component, name, value))
    return found


async def list_all(call: Call) -> Response:
    return await list_rows(call, _all(call))


async def list_component(call: Call) -> Response:
    return await list_rows(call, [row for row in _all(call) if row["component"] == call.name("component")])


async def list_in_vhost(call: Call) -> Response:
    call.visible()
    return await list_rows(
        call,
        [
            row
            for row in _all(call)
            if row["component"] == call.name("component") and row["vhost"] == call.name("vhost")
        ],
    )


def _find(call: Call) -> Json:
    for row in _all(call):
        if all(row[part] == call.name(part) for part in ("component", "vhost", "name")):
            return row
    raise object_not_found()


async def show(call: Call) -> Response:
    call.visible()
    return Response(body=call.select(_find(call)))


def _check_shovel(call: Call, value: Json) -> None:
    """Check the definition of a shovel, whose URIs of this broker need no password, as one of the caller.

    :raises ApiError: 400 if it is wrong, or names a virtual host that the caller may not open.
    """
    # Imported only where a shovel is defined.
    from warren.broker.shovel.definition import definition_errors

    def may_open(vhost: str) -> bool:
        return vhost in call.node.virtual_hosts and call.caller.may_open(vhost)

    errors = definition_errors(call.name("name"), value, call.caller.user.name, may_open)
    if errors:
        raise bad_request("Validation failed\n\n" + "".join(f"{error}\n" for error in errors))


async def put(call: Call) -> Response:
    call.visible()
    value = call.body("value")["value"]
    if call.name("component") == SHOVEL:
        _check_shovel(call, value)
    existing = any(
        all(row[part] == call.name(part) for part in ("component", "vhost", "name")) for row in _all(call)
    )
    await call.perform(
        parameter_verbs.set_parameter,
        vhost=call.name("vhost"),
        component=call.name("component"),
        name=call.name("name"),
        value=json.dumps(value),
    )
    return Response(NO_CONTENT if existing else CREATED)


async def delete(call: Call) -> Response:
    call.visible()
    _find(call)
    component = call.name("component")
    if component in (OPERATOR_POLICY, LIMITS):
        # As by their own paths.
        call.caller.require(ADMINISTRATOR)
    if component == OPERATOR_POLICY:
        await call.perform(
            policy_verbs.clear_operator_policy, vhost=call.name("vhost"), name=call.name("name")
        )
    elif component == LIMITS:
        await call.perform(vhost_verbs.clear_vhost_limits, vhost=call.name("vhost"))
    else:
        await call.perform(
            parameter_verbs.clear_parameter,
            vhost=call.name("vhost"),
            component=component,
            name=call.name("name"),
        )
    return Response(NO_CONTENT)


async def list_global(call: Call) -> Response:
    found = sorted(call.management.parameters.globals.items())
    return await list_rows(call, [{"name": name, "value": value} for name, value in found])


async def show_global(call: Call) -> Response:
    name = call.name("name")
    if name not in call.management.parameters.globals:
        raise object_not_found()
    return Response(body=call.select({"value": call.management.parameters.globals[name], "name": name}))


async def put_global(call: Call) -> Response:
    value, name = call.body("value")["value"], call.name("name")
    existing = name in call.management.parameters.globals
    if not name:
        raise bad_request("the name of a global parameter must not be empty")
    await call.perform(parameter_verbs.set_global_parameter, name=name, value=json.dumps(value))
    return Response(NO_CONTENT if existing else CREATED)


async def delete_global(call: Call) -> Response:
    await show_global(call)
    await call.perform(parameter_verbs.clear_global_parameter, name=call.name("name"))
    return Response(NO_CONTENT)
