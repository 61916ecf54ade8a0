"""Limits of virtual hosts and of users."""

from __future__ import annotations

from warren.broker.http_api.api_error import ApiError, bad_request, not_found
from warren.broker.http_api.call import NO_CONTENT, Call, Response
from warren.broker.http_api.caller import MONITORING
from warren.broker.http_api.resources.users import find
from warren.broker.management.request import Json
from warren.broker.management.verbs import users as user_verbs
from warren.broker.management.verbs import virtual_hosts as vhost_verbs
from warren.broker.management.verbs.users import user_limits
from warren.broker.management.verbs.virtual_hosts import vhost_limits
from warren.broker.model.vhost.vhost_settings import VirtualHostSettings


def _vhost_row(settings: VirtualHostSettings) -> list[Json]:
    found = vhost_limits(settings)
    return [{"value": found, "vhost": settings.name}] if found else []


async def of_vhosts(call: Call) -> Response:
    hosts = [each for each in call.node.virtual_hosts.all() if call.caller.may_monitor(each.name)]
    return Response(body=[row for each in hosts for row in _vhost_row(each)])


async def of_vhost(call: Call) -> Response:
    return Response(body=_vhost_row(call.monitored().settings))


async def put_vhost(call: Call) -> Response:
    settings, name = call.visible().settings, call.name("name")
    value = call.body("value")["value"]
    await call.perform(
        vhost_verbs.set_vhost_limits, vhost=settings.name, definition={**vhost_limits(settings), name: value}
    )
    return Response(NO_CONTENT)


async def delete_vhost(call: Call) -> Response:
    if call.name("vhost") not in call.node.virtual_hosts:
        raise not_found("vhost_not_found")
    settings = call.visible().settings
    kept = {name: value for name, value in vhost_limits(settings).items() if name != call.name("name")}
    await call.perform(vhost_verbs.set_vhost_limits, vhost=settings.name, definition=kept)
    return Response(NO_CONTENT)


async def of_users(call: Call) -> Response:
    found = [(user.name, user_limits(user)) for user in call.node.access.users.all()]
    return Response(body=[{"user": name, "value": value} for name, value in found if value])


async def of_user(call: Call) -> Response:
    """Return the limits of a user, which monitoring users see, and the user."""
    call.caller.require_self_or(MONITORING, call.name("user"))
    user = find(call, call.name("user"))
    found = user_limits(user)
    return Response(body=[{"user": user.name, "value": found}] if found else [])


async def put_user(call: Call) -> Response:
    name = call.name("user")
    if name not in call.node.access.users:
        raise bad_request(["no_such_user", name])
    user = find(call, name)
    try:
        await call.perform(
            user_verbs.set_user_limits,
            username=user.name,
            definition={call.name("name"): call.body("value")["value"]},
        )
    except ApiError as error:
        # Without the heading that RabbitMQ puts over the texts of other limits only.
        raise bad_request(str(error.reason).removeprefix("Validation failed\n\n").rstrip("\n")) from None
    return Response(NO_CONTENT)


async def delete_user(call: Call) -> Response:
    user, name = find(call, call.name("user")), call.name("name")
    # RabbitMQ answers so for every name, because the limit is not in effect afterwards.
    if name in ("max-connections", "max-channels"):
        await call.perform(user_verbs.clear_user_limits, username=user.name, limit=name)
    return Response(NO_CONTENT)
