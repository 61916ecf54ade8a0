"""Limits of users and virtual hosts in the JSON form that operators write, such as `{"max-connections": 10}`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from warren.broker.management.json_encoding import decode
from warren.broker.management.request import Json, RequestRefused
from warren.broker.model.policy.policy_keys import format_settings, format_term
from warren.broker.store.definitions.row_statements import LARGEST_INTEGER


def parse_limits(definition: Json, known: tuple[str, ...], where: str) -> dict[str, int]:
    """Validate a JSON object of limits, and return it. A negative number means no limit.

    :param definition: the object, or its JSON text
    :param known: names of limits that the object may contain
    :param where: name of the JSON object in RabbitMQ's error text for an unknown limit
    :raises RequestRefused: if it is no such object, or a limit is unknown, no integer, or has more than 64 bits
    """
    if isinstance(definition, str):
        try:
            definition = decode(definition)
        except ValueError as error:
            raise RequestRefused(f"the limits are not JSON: {error}") from None
    if not isinstance(definition, dict):
        raise RequestRefused(f"the limits must be a JSON object, not {json.dumps(definition)}")
    unknown = {name: value for name, value in definition.items() if name not in known}
    if unknown:
        raise RequestRefused(f"Validation failed: Unrecognised terms {format_settings(unknown)} in {where}")
    for name, value in definition.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise RequestRefused(
                f"Validation failed: {name} should be a number, actually was {format_term(value)}"
            )
        if abs(value) > LARGEST_INTEGER:
            raise RequestRefused(f"Validation failed: {name} must have at most 64 bits, actually was {value}")
    return definition


def present_limits(**found: int | None) -> dict[str, int]:
    """Return the limits that are set (not None), under RabbitMQ's names.

    :param found: limits by name, with `_` for the `-` of RabbitMQ's names: `max_connections` for `max-connections`
    """
    return {name.replace("_", "-"): value for name, value in found.items() if value is not None}


def format_limits(found: Mapping[str, int]) -> str:
    """Format limits as compact JSON, ordered by name, as `list_vhost_limits` and `list_user_limits` print them.

    :param found: limits by RabbitMQ's names, such as `max-connections`
    """
    return json.dumps(dict(sorted(found.items())), separators=(",", ":"))
