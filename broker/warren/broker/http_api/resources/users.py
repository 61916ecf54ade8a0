"""Users."""

from __future__ import annotations

import base64
import binascii

from warren.broker.access.passwords import SHA256, to_definitions
from warren.broker.access.users import User
from warren.broker.http_api.api_error import bad_request, object_not_found
from warren.broker.http_api.call import CREATED, NO_CONTENT, Call, Response
from warren.broker.http_api.listing_response import list_objects
from warren.broker.management.request import Json
from warren.broker.management.verbs import users as user_verbs
from warren.broker.management.verbs.users import user_limits
from warren.broker.model.operator_errors import ObjectNotFound, OperationRefused


def to_json(user: User) -> Json:
    """Return a user as the API shows it, with the hash of the password, as RabbitMQ does."""
    return {
        "name": user.name,
        "password_hash": to_definitions(user.password) if user.password else "",
        "hashing_algorithm": user.algorithm,
        "tags": list(user.tags),
        "limits": user_limits(user),
    }


async def _list(call: Call, found: list[User]) -> Response:
    return await list_objects(call, found, lambda user: user.name, to_json)


async def list_all(call: Call) -> Response:
    return await _list(call, call.node.access.users.all())


async def without_permissions(call: Call) -> Response:
    allowed = {each.user for each in call.node.access.permissions.all()}
    return await _list(call, [user for user in call.node.access.users.all() if user.name not in allowed])


def find(call: Call, name: str) -> User:
    """Return a user.

    :raises ApiError: 404 if there is none of that name.
    """
    try:
        return call.node.access.users.get(name)
    except ObjectNotFound:
        raise object_not_found() from None


async def show(call: Call) -> Response:
    return Response(body=call.select(to_json(find(call, call.name("user")))))


async def put(call: Call) -> Response:
    """Add a user, or replace password and tags of one; without a password in the request, the user has none."""
    users, name, body = call.node.access.users, call.name("user"), call.body()
    if "tags" not in body:
        raise bad_request("tags_not_present")
    tags = _tags(body["tags"])
    password, hashed = body.get("password"), body.get("password_hash")
    if (password is not None and not isinstance(password, str)) or (
        hashed is not None and not isinstance(hashed, str)
    ):
        raise bad_request("password and password_hash must be texts")
    if password is not None and hashed is not None:
        raise bad_request("both_password_and_password_hash_are_provided")
    # The algorithm describes a hash; passwords are always hashed with the default one.
    algorithm = body.get("hashing_algorithm", SHA256) if hashed else SHA256
    existing = name in users

    def change() -> None:
        try:
            if not existing:
                users.add(
                    name, password or None, tags=tags, password_hash=hashed or None, algorithm=str(algorithm)
                )
                return
            if password:
                users.change_password(name, password)
            elif hashed:
                users.set_password_hash(name, hashed, str(algorithm))
            else:
                users.clear_password(name)
            users.set_tags(name, tags)
        except OperationRefused as refused:
            raise bad_request(
                ["not_base64", hashed] if hashed and not _is_base64(hashed) else str(refused)
            ) from None

    await call.change(change)
    return Response(NO_CONTENT if existing else CREATED)


def _tags(value: Json) -> list[str]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise bad_request("tags must be a text of names with commas between, or a list of texts")
    return [tag.strip() for tag in value if tag.strip()]


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error):
        return False


async def delete(call: Call) -> Response:
    find(call, call.name("user"))
    await call.perform(user_verbs.delete_user, username=call.name("user"))
    return Response(NO_CONTENT)


async def bulk_delete(call: Call) -> Response:
    names = call.body("users")["users"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("users must be a list of names")
    for name in names:
        if name in call.node.access.users:
            await call.perform(user_verbs.delete_user, username=name)
    return Response(NO_CONTENT)
