"""The verbs of permissions and topic permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.management.request import Json, Request
from warren.broker.management.verbs.listing import picked

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
    """Those for a virtual host."""
    management.vhost(request)
    found = management.node.access.permissions.all(vhost=request.text("vhost", "/"))
    return picked(
        request,
        ["user", "configure", "write", "read"],
        [[each.user, each.configure, each.write, each.read] for each in found],
    )


def list_user_permissions(management: Management, request: Request) -> Json:
    user = management.node.access.users.get(request.text("username"))
    found = management.node.access.permissions.all(user=user.name)
    return picked(
        request,
        ["vhost", "configure", "write", "read"],
        [[each.vhost, each.configure, each.write, each.read] for each in found],
    )


def set_topic_permissions(management: Management, request: Request) -> None:
    management.node.access.permissions.set_topic(
        request.text("username"),
        request.text("vhost", "/"),
        request.text("exchange"),
        request.text("write"),
        request.text("read"),
    )


def clear_topic_permissions(management: Management, request: Request) -> None:
    """Those on one exchange, or on all."""
    exchange = request.text("exchange") if request.has("exchange") else None
    management.node.access.permissions.clear_topic(
        request.text("username"), request.text("vhost", "/"), exchange
    )


def list_topic_permissions(management: Management, request: Request) -> Json:
    """Those for a virtual host."""
    management.vhost(request)
    found = management.node.access.permissions.topics(vhost=request.text("vhost", "/"))
    return picked(
        request,
        ["user", "exchange", "write", "read"],
        [[each.user, each.exchange, each.write, each.read] for each in found],
    )


def list_user_topic_permissions(management: Management, request: Request) -> Json:
    user = management.node.access.users.get(request.text("username"))
    found = management.node.access.permissions.topics(user=user.name)
    return picked(
        request,
        ["vhost", "exchange", "write", "read"],
        [[each.vhost, each.exchange, each.write, each.read] for each in found],
    )
