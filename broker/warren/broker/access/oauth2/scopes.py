"""Scopes of access tokens as permissions, such as `read:vhost/queue` or `write:vhost/exchange/routing.key.*`.

https://www.rabbitmq.com/docs/oauth2#scope-translation. The patterns match as RabbitMQ's do: `*` stands for any bytes, the
rest is percent-encoded. What stands between two wildcards is found at its first position, and not sought further.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from warren.broker.access.authorization import CONFIGURE, READ, WRITE
from warren.broker.access.oauth2.oauth2_config import OAuth2Config

MOST_SCOPES: Final = 2048
"""Scopes that a token may have; RabbitMQ's limit, too."""
TAG: Final = "tag:"
"""Prefix of scopes that are user tags."""
REQUESTING_PARTY: Final = "authorization.permissions.scopes"
"""Path of the scopes of a requesting party token (UMA 2.0), as Keycloak issues them."""
ANY: Final = "*"
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_DELIMITERS: Final = re.compile(r"([{.*}])")


class TooManyScopes(ValueError):
    """A token has more scopes than MOST_SCOPES."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Pattern of names: literal parts between wildcards."""

    parts: tuple[bytes, ...]

    @classmethod
    def parse(cls, text: str) -> Pattern | None:
        """Parse a pattern. Return None if its percent-encoding is wrong: such a pattern matches nothing."""
        if _BAD_ESCAPE.search(text):
            return None
        return cls(tuple(unquote_to_bytes(part.replace("+", " ")) for part in text.split(ANY)))

    def matches(self, name: bytes) -> bool:
        """Return whether a whole name matches."""
        first, *rest = self.parts
        if not name.startswith(first):
            return False
        position = len(first)
        for index, part in enumerate(rest):
            if not part and index == len(rest) - 1:
                return True
            if position == len(name):
                return False
            found = name.find(part, position)
            if found < 0:
                return False
            position = found + len(part)
        return position == len(name)


@dataclass(frozen=True, slots=True)
class ScopePermission:
    """Permission that a scope grants in one virtual host.

    :param routing_key: pattern of the routing keys on topic exchanges; None grants none, as in RabbitMQ.
    """

    operation: str
    name: Pattern
    routing_key: Pattern | None


def scopes_of(claims: Mapping[str, Any], config: OAuth2Config) -> tuple[str, ...]:
    """Return the scopes of a token that are for this broker, without their prefix.

    :raises TooManyScopes: if there are more than MOST_SCOPES.
    """
    found = _split(claims.get("scope"))
    for path in (REQUESTING_PARTY, *config.additional_scopes_key):
        found += _at_path(claims, [part for part in path.split(".") if part], config.resource_server_id)
    for scope in list(found):
        found += config.scope_aliases.get(scope, "").split()
    prefix = config.prefix
    kept = {scope.removeprefix(prefix) for scope in found if scope.startswith(prefix)}
    if len(kept) > MOST_SCOPES:
        raise TooManyScopes(f"it has {len(kept)} scopes; {MOST_SCOPES} are allowed")
    return tuple(sorted(kept))


def tags_of(scopes: Sequence[str]) -> tuple[str, ...]:
    """Return the user tags that scopes grant."""
    return tuple(scope.removeprefix(TAG) for scope in scopes if scope.startswith(TAG) and "," not in scope)


def permissions_in(scopes: Sequence[str], vhost: str, claims: Mapping[str, Any]) -> list[ScopePermission]:
    """Return the permissions that scopes grant in a virtual host.

    :param claims: claims of the token, for the variables in scopes, such as `{sub}`.
    """
    name = vhost.encode("utf-8", "surrogateescape")
    found = []
    for scope in scopes:
        operation, colon, resource = _expanded(scope, vhost, claims).partition(":")
        if not colon or operation not in (READ, WRITE, CONFIGURE):
            continue
        parts = resource.split("/")
        if len(parts) not in (2, 3):
            continue
        host, object_name = Pattern.parse(parts[0]), Pattern.parse(parts[1])
        if host is not None and object_name is not None and host.matches(name):
            key = Pattern.parse(parts[2]) if len(parts) == 3 else None
            found.append(ScopePermission(operation, object_name, key))
    return found


def _split(value: object) -> list[str]:
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _at_path(value: object, path: list[str], resource: str) -> list[str]:
    """Return the scopes at a path of claims; a list on the way stands for each of its items."""
    if isinstance(value, list) and path:
        return [scope for each in value if isinstance(each, dict) for scope in _at_path(each, path, resource)]
    if path:
        if not isinstance(value, dict) or path[0] not in value:
            return []
        return _at_path(value[path[0]], path[1:], resource)
    if isinstance(value, dict):
        return [f"{resource}.{scope}" for scope in _split(value.get(resource))]
    return _split(value)


def _expanded(scope: str, vhost: str, claims: Mapping[str, Any]) -> str:
    """Return a scope with the values of its variables: `{vhost}`, or a claim whose value is a text.

    A wildcard in a value stands for itself: who may choose a user name must not choose permissions.
    """
    if "{" not in scope:
        return scope
    text, parts = "", _DELIMITERS.split(scope)
    while parts:
        part = parts.pop(0)
        if part != "{":
            text += part
            continue
        name = parts.pop(0) if parts else ""
        value = vhost if name == "vhost" else claims.get(name, name)
        text += (value if isinstance(value, str) else name).replace(ANY, "%2A")
        if parts and parts.pop(0) != "}":
            return ""
    return text
