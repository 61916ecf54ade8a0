"""Limits of users and virtual hosts as operators write them: a JSON object of numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping

from warren.broker.management.request import Json, Refused
from warren.broker.model.policy.policy_keys import format_settings, format_term


def limits(definition: Json, known: tuple[str, ...], where: str) -> dict[str, int]:
    """The limits in a definition, checked; a negative one is none.

    :param where: how RabbitMQ's refusal names them
    :raises Refused: with RabbitMQ's text.
    """
    if isinstance(definition, str):
        try:
            definition = json.loads(definition)
        except (ValueError, RecursionError) as error:
            raise Refused(f"the limits are not JSON: {error}") from None
    if not isinstance(definition, dict):
        raise Refused(f"the limits have to be an object: {json.dumps(definition)}")
    unknown = {name: value for name, value in definition.items() if name not in known}
    if unknown:
        raise Refused(f"Validation failed: Unrecognised terms {format_settings(unknown)} in {where}")
    for name, value in definition.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise Refused(f"Validation failed: {name} should be a number, actually was {format_term(value)}")
    return definition


def without_none(**found: int | None) -> dict[str, int]:
    """Those that are set, under RabbitMQ's names."""
    return {name.replace("_", "-"): value for name, value in found.items() if value is not None}


def shown(found: Mapping[str, int]) -> str:
    """As the commands print them."""
    return json.dumps(dict(sorted(found.items())), separators=(",", ":"))
