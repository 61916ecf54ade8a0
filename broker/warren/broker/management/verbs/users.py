"""Implementation of the `warren ctl` commands for users and their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.broker.access.users import User
from warren.broker.management.limits_json import format_limits, parse_limits, present_limits
from warren.broker.management.request import Json, Request, RequestRefused
from warren.broker.management.verbs.listing import select_from_table, table
from warren.core.errors import ExitStatus

if TYPE_CHECKING:
    from warren.broker.management.management import Management

LIMITS: Final = ("max-connections", "max-channels")


def add_user(management: Management, request: Request) -> None:
    management.node.access.users.add(request.text("username"), _password(request))


def _password(request: Request) -> str:
    password = request.text("password")
    if not password:
        raise RequestRefused("an empty password allows no login; use `clear_password` to remove a password")
    return password


def delete_user(management: Management, request: Request) -> None:
    management.node.access.users.delete(request.text("username"))


def change_password(management: Management, request: Request) -> None:
    management.node.access.users.change_password(request.text("username"), _password(request))


def clear_password(management: Management, request: Request) -> None:
    management.node.access.users.clear_password(request.text("username"))


def authenticate_user(management: Management, request: Request) -> Json:
    name = request.text("username")
    if management.node.access.users.authenticate(name, request.data("password")) is None:
        raise RequestRefused(f"failed to authenticate user '{name}': invalid credentials", ExitStatus.FAILED)
    return "Success"


def set_user_tags(management: Management, request: Request) -> None:
    management.node.access.users.set_tags(request.text("username"), request.texts("tags"))


def list_users(management: Management, request: Request) -> Json:
    users = management.node.access.users.all()
    return select_from_table(request, ["user", "tags"], [[user.name, list(user.tags)] for user in users])


def user_limits(user: User) -> dict[str, int]:
    """Return those limits of a user that are set, by RabbitMQ's names, such as `max-connections`."""
    return present_limits(max_connections=user.max_connections, max_channels=user.max_channels)


def set_user_limits(management: Management, request: Request) -> None:
    """Set the user limits that the request contains; other limits stay unchanged."""
    users = management.node.access.users
    name = request.text("username")
    found = user_limits(users.get(name)) | parse_limits(request.value("definition"), LIMITS, "user-limits")
    _set_limits(management, name, found)


def clear_user_limits(management: Management, request: Request) -> None:
    name, which = request.text("username"), request.text("limit")
    found = user_limits(management.node.access.users.get(name))
    if which == "all":
        found.clear()
    elif which in LIMITS:
        found.pop(which, None)
    else:
        raise RequestRefused(f"there is no limit {which}; there are: all, {', '.join(LIMITS)}")
    _set_limits(management, name, found)


def _set_limits(management: Management, name: str, found: dict[str, int]) -> None:
    management.node.access.users.set_limits(
        name, max_connections=found.get("max-connections"), max_channels=found.get("max-channels")
    )


def list_user_limits(management: Management, request: Request) -> Json:
    """List the limits of one user, or of all users that have limits."""
    users = management.node.access.users
    if request.has("user") and not request.flag("global"):
        return format_limits(user_limits(users.get(request.text("user"))))
    found = [(user.name, user_limits(user)) for user in users.all()]
    return table(["user", "limits"], [[name, format_limits(some)] for name, some in found if some])
