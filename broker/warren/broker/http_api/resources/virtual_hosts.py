"""Virtual hosts."""

from __future__ import annotations

from warren.broker.http_api.api_error import ApiError, bad_request, not_found, object_not_found
from warren.broker.http_api.call import CREATED, NO_CONTENT, Call, Response
from warren.broker.http_api.listing_response import list_objects
from warren.broker.http_api.message_stats import vhost_statistics
from warren.broker.management.items.queue_items import NODE
from warren.broker.management.request import Json
from warren.broker.management.verbs import permissions as permission_verbs
from warren.broker.management.verbs import virtual_hosts as vhost_verbs
from warren.broker.model.vhost.vhost_settings import VirtualHostSettings


def to_json(call: Call, settings: VirtualHostSettings) -> Json:
    """Return a virtual host as the API shows it."""
    metadata: dict[str, Json] = {"description": settings.description, "tags": list(settings.tags)}
    metadata["default_queue_type"] = settings.default_queue_type or "classic"
    return {
        "name": settings.name,
        "description": settings.description,
        "tags": list(settings.tags),
        "default_queue_type": settings.default_queue_type or "classic",
        "protected_from_deletion": settings.protected,
        "metadata": metadata,
        "tracing": call.node.virtual_hosts.declarations_of(settings.name).vhost.firehose is not None,
        "cluster_state": {NODE: "running"},
        **vhost_statistics(call, settings.name),
    }


async def list_all(call: Call) -> Response:
    found = [each for each in call.node.virtual_hosts.all() if call.caller.may_monitor(each.name)]
    return await list_objects(call, found, lambda each: each.name, lambda each: to_json(call, each))


async def show(call: Call) -> Response:
    call.visible()
    return Response(body=call.select(to_json(call, call.node.virtual_hosts.settings(call.name("vhost")))))


async def put(call: Call) -> Response:
    """Add a virtual host, or change its description, tags and default queue type."""
    name, body = call.name("vhost"), call.body()
    wanted = {
        key: body[key] for key in ("description", "default_queue_type") if isinstance(body.get(key), str)
    }
    tags = body.get("tags")
    if isinstance(tags, list):
        wanted["tags"] = ",".join(str(tag) for tag in tags)
    elif isinstance(tags, str):
        wanted["tags"] = tags
    existing = name in call.node.virtual_hosts
    if existing:
        await call.perform(vhost_verbs.update_vhost_metadata, name=name, **wanted)
    else:
        await call.perform(vhost_verbs.add_vhost, name=name, **wanted)
        # As RabbitMQ does, so that whoever adds a virtual host can use it.
        await call.perform(
            permission_verbs.set_permissions,
            username=call.caller.user.name,
            vhost=name,
            configure=".*",
            write=".*",
            read=".*",
        )
    if isinstance(body.get("protected_from_deletion"), bool):
        await _set_protection(call, name, body["protected_from_deletion"])
    if isinstance(body.get("tracing"), bool):
        await call.perform(vhost_verbs.trace_on if body["tracing"] else vhost_verbs.trace_off, vhost=name)
    return Response(NO_CONTENT if existing else CREATED)


async def delete(call: Call) -> Response:
    name = call.name("vhost")
    if name not in call.node.virtual_hosts:
        raise object_not_found()
    if call.node.virtual_hosts.settings(name).protected:
        raise ApiError(
            412,
            "precondition_failed",
            f"Refusing to delete virtual host '{name}' because it is protected from deletion",
        )
    await call.perform(vhost_verbs.delete_vhost, name=name)
    return Response(NO_CONTENT)


async def start(call: Call) -> Response:
    """Answer that a virtual host runs: it always does."""
    call.visible()
    if call.name("node") != NODE:
        raise bad_request(f"Unknown node: {call.name('node')}")
    return Response(NO_CONTENT)


async def protect(call: Call) -> Response:
    await _set_protection(call, call.name("vhost"), True)
    return Response(NO_CONTENT)


async def unprotect(call: Call) -> Response:
    await _set_protection(call, call.name("vhost"), False)
    return Response(NO_CONTENT)


async def _set_protection(call: Call, name: str, protected: bool) -> None:
    verb = "enable" if protected else "disable"
    if name not in call.node.virtual_hosts:
        if not protected:
            raise object_not_found()
        raise not_found(
            f"Cannot {verb} deletion protection of virtual host '{name}' because it does not exist"
        )
    await call.perform(
        vhost_verbs.enable_vhost_protection_from_deletion
        if protected
        else vhost_verbs.disable_vhost_protection_from_deletion,
        name=name,
    )
