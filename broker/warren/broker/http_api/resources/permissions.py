"""Permissions and topic permissions of users in virtual hosts."""

from __future__ import annotations

from dataclasses import asdict

from warren.broker.http_api.api_error import bad_request, object_not_found
from warren.broker.http_api.call import CREATED, NO_CONTENT, Call, Response
from warren.broker.http_api.listing_response import list_rows
from warren.broker.http_api.resources.exchanges import DEFAULT as DEFAULT_EXCHANGE
from warren.broker.http_api.resources.users import find
from warren.broker.management.control_verbs import Action
from warren.broker.management.request import Json
from warren.broker.management.verbs import permissions as permission_verbs


def _all(call: Call, user: str | None, vhost: str | None, topics: bool) -> list[Json]:
    permissions = call.node.access.permissions
    found = permissions.topics(user=user, vhost=vhost) if topics else permissions.all(user=user, vhost=vhost)
    return [asdict(each) for each in found]


def _vhost(call: Call) -> str:
    name = call.name("vhost")
    if name not in call.node.virtual_hosts:
        raise object_not_found()
    return name


async def list_all(call: Call) -> Response:
    return await list_rows(call, _all(call, None, None, False))


async def list_topics(call: Call) -> Response:
    return await list_rows(call, _all(call, None, None, True))


async def of_vhost(call: Call) -> Response:
    return await list_rows(call, _all(call, None, _vhost(call), False))


async def topics_of_vhost(call: Call) -> Response:
    return await list_rows(call, _all(call, None, _vhost(call), True))


async def of_user(call: Call) -> Response:
    return await list_rows(call, _all(call, find(call, call.name("user")).name, None, False))


async def topics_of_user(call: Call) -> Response:
    return await list_rows(call, _all(call, find(call, call.name("user")).name, None, True))


async def show(call: Call) -> Response:
    found = _all(call, call.name("user"), _vhost(call), False)
    if not found:
        raise object_not_found()
    return Response(body=call.select(found[0]))


async def show_topics(call: Call) -> Response:
    found = _all(call, call.name("user"), _vhost(call), True)
    if not found:
        raise object_not_found()
    return Response(body=found)


async def put(call: Call) -> Response:
    body = call.body("configure", "write", "read")
    return await _put(
        call,
        permission_verbs.set_permissions,
        {key: body[key] for key in ("configure", "write", "read")},
        False,
    )


async def put_topic(call: Call) -> Response:
    body = call.body("exchange", "write", "read")
    exchange, topology = body["exchange"], call.node.vhosts.get(call.data("vhost"))
    if (
        topology is not None
        and call.name("user") in call.node.access.users
        and isinstance(exchange, str)
        and exchange.encode() not in topology.vhost.exchanges
    ):
        raise bad_request(["no_such_exchange", exchange])
    return await _put(
        call,
        permission_verbs.set_topic_permissions,
        {key: body[key] for key in ("exchange", "write", "read")},
        True,
    )


async def _put(call: Call, action: Action, values: dict[str, Json], topics: bool) -> Response:
    user, vhost = call.name("user"), call.name("vhost")
    if user not in call.node.access.users or vhost not in call.node.virtual_hosts:
        raise bad_request("vhost_or_user_not_found")
    existing = bool(_all(call, user, vhost, topics))
    await call.perform(action, username=user, vhost=vhost, **values)
    return Response(NO_CONTENT if existing else CREATED)


async def delete(call: Call) -> Response:
    await show(call)
    await call.perform(
        permission_verbs.clear_permissions, username=call.name("user"), vhost=call.name("vhost")
    )
    return Response(NO_CONTENT)


async def delete_topic(call: Call) -> Response:
    """Remove a user's topic permission on one exchange.

    As in RabbitMQ, 404 means that the user has no topic permission at all in the virtual host.
    """
    await show_topics(call)
    exchange = call.name("exchange")
    await call.perform(
        permission_verbs.clear_topic_permissions,
        username=call.name("user"),
        vhost=call.name("vhost"),
        exchange="" if exchange == DEFAULT_EXCHANGE else exchange,
    )
    return Response(NO_CONTENT)


async def delete_topics(call: Call) -> Response:
    await show_topics(call)
    await call.perform(
        permission_verbs.clear_topic_permissions, username=call.name("user"), vhost=call.name("vhost")
    )
    return Response(NO_CONTENT)
