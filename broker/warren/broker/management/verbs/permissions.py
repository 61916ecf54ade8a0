"""Implementation of the `warren ctl` commands for permissions and topic permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.management.request import Json, Request, RequestRefused
from warren.broker.management.verbs.listing import select_from_table

if TYPE_CHECKING:
    from warren.broker.management.management import Management


def set_permissions(management: Management, request: Request) -> None:
    management.node.access.permissions.set(
        request.text("username"),
        request.text("vhost", "/"),
        request.text("configure"),
        request.text("write"),
        request.text("read"),
    )


def clear_permissions(management: Management, request: Request) -> None:
    management.node.access.permissions.clear(request.text("username"), request.text("vhost", "/"))


def list_permissions(management: Management, request: Request) -> Json:
    """List the permissions of a virtual host."""
    request.vhost(management.node)
    found = management.node.access.permissions.all(vhost=request.text("vhost", "/"))
    return select_from_table(
        request,
        ["user", "configure", "write", "read"],
        [[each.user, each.configure, each.write, each.read] for each in found],
    )


def list_user_permissions(management: Management, request: Request) -> Json:
    user = management.node.access.users.get(request.text("username"))
    found = management.node.access.permissions.all(user=user.name)
    return select_from_table(
        request,
        ["vhost", "configure", "write", "read"],
        [[each.vhost, each.configure, each.write, each.read] for each in found],
    )


def set_topic_permissions(management: Management, request: Request) -> None:
    """Set the topic permission of a user on one exchange, which has to exist; an empty name is the default exchange."""
    management.node.access.users.get(request.text("username"))
    exchange = request.text("exchange")
    if exchange.encode("utf-8", "surrogateescape") not in request.vhost(management.node).exchanges:
        raise RequestRefused(f"Exchange {exchange} does not exist")
    management.node.access.permissions.set_topic(
        request.text("username"),
        request.text("vhost", "/"),
        request.text("exchange"),
        request.text("write"),
        request.text("read"),
    )


def clear_topic_permissions(management: Management, request: Request) -> None:
    """Clear the topic permissions on one exchange, or on all exchanges."""
    exchange = request.text("exchange") if request.has("exchange") else None
    management.node.access.permissions.clear_topic(
        request.text("username"), request.text("vhost", "/"), exchange
    )


def list_topic_permissions(management: Management, request: Request) -> Json:
    """List the topic permissions of a virtual host."""
    request.vhost(management.node)
    found = management.node.access.permissions.topics(vhost=request.text("vhost", "/"))
    return select_from_table(
        request,
        ["user", "exchange", "write", "read"],
        [[each.user, each.exchange, each.write, each.read] for each in found],
    )


def list_user_topic_permissions(management: Management, request: Request) -> Json:
    user = management.node.access.users.get(request.text("username"))
    found = management.node.access.permissions.topics(user=user.name)
    return select_from_table(
        request,
        ["vhost", "exchange", "write", "read"],
        [[each.vhost, each.exchange, each.write, each.read] for each in found],
    )
