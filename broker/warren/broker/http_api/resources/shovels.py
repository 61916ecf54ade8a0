"""Shovels: their status, definition, restart and deletion."""

from __future__ import annotations

from warren.broker.http_api.api_error import ApiError, object_not_found
from warren.broker.http_api.call import NO_CONTENT, Call, Response
from warren.broker.http_api.listing_response import list_rows
from warren.broker.management.items.queue_items import NODE
from warren.broker.management.request import Json
from warren.broker.management.verbs import shovels as shovel_verbs
from warren.broker.model.policy.runtime_parameters import SHOVEL


def _all(call: Call) -> list[dict[str, Json]]:
    """Return the status of the shovels in all virtual hosts that the caller may open."""
    return [
        {"node": NODE, **shovel.status()}
        for shovel in call.management.shovels.all()
        if call.caller.may_open(shovel.vhost)
    ]


async def list_all(call: Call) -> Response:
    return await list_rows(call, _all(call))


async def list_in_vhost(call: Call) -> Response:
    call.monitored()
    return await list_rows(call, [row for row in _all(call) if row["vhost"] == call.name("vhost")])


def _exists(call: Call) -> bool:
    call.monitored()
    return call.management.shovels.find(call.data("vhost"), call.name("name")) is not None


async def show(call: Call) -> Response:
    """Return the definition of a shovel, with URIs without credentials."""
    stored = call.management.parameters.stored
    key = (call.data("vhost"), SHOVEL, call.name("name"))
    if not _exists(call) or key not in stored:
        raise object_not_found()
    definition = stored[key]
    value: Json = dict(definition) if isinstance(definition, dict) else {}
    for name in ("src-uri", "dest-uri"):
        if name in value:
            value[name] = _without_credentials(value[name])
    return Response(
        body={"value": value, "vhost": call.name("vhost"), "component": SHOVEL, "name": call.name("name")}
    )


def _without_credentials(value: Json) -> Json:
    # Imported only where a shovel is defined.
    from warren.broker.shovel.shovel_uri import shown_uri

    if isinstance(value, list):
        return [_without_credentials(each) for each in value]
    return shown_uri(value) if isinstance(value, str) else value


async def delete(call: Call) -> Response:
    """Delete a shovel; succeed also if there is none, as RabbitMQ does."""
    if _exists(call):
        definition = call.management.parameters.stored[call.data("vhost"), SHOVEL, call.name("name")]
        if isinstance(definition, dict) and definition.get("internal") is True:
            raise ApiError(405, "method_not_allowed", "Protected")
        await call.perform(shovel_verbs.delete_shovel, vhost=call.name("vhost"), name=call.name("name"))
    return Response(NO_CONTENT)


async def restart(call: Call) -> Response:
    if not _exists(call):
        raise object_not_found()
    await call.perform(shovel_verbs.restart_shovel, vhost=call.name("vhost"), name=call.name("name"))
    return Response(NO_CONTENT)
