"""Implementation of the `warren ctl` commands that set, clear and list policies and operator policies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from warren.broker.management.json_encoding import decode
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json, Request, RequestRefused
from warren.broker.management.verbs.listing import select_columns, table
from warren.broker.model.policy.policies import Policy
from warren.broker.model.policy.policy_keys import InvalidPolicy

if TYPE_CHECKING:
    from warren.broker.management.management import Management

COLUMNS: Final = ("vhost", "name", "pattern", "apply-to", "definition", "priority")


async def _set(management: Management, request: Request, operator: bool) -> None:
    vhost = request.vhost(management.node)
    definition = request.value("definition")
    if isinstance(definition, str):
        try:
            definition = decode(definition)
        except ValueError as error:
            raise RequestRefused(f"the definition is not JSON: {error}") from None
    try:
        policy = Policy(
            request.text("name"),
            request.text("pattern"),
            definition,
            request.text("apply_to", "all"),
            request.number("priority", 0),
            operator,
        )
        management.parameters.set_policy(vhost, policy)
    except InvalidPolicy as reason:
        raise RequestRefused(f"Validation failed: {reason}") from None
    await vhost.bulk_work.finished(vhost.policies)


async def _clear(management: Management, request: Request, operator: bool) -> None:
    vhost = request.vhost(management.node)
    management.parameters.clear_policy(vhost, request.text("name"), operator)
    await vhost.bulk_work.finished(vhost.policies)


def _list(management: Management, request: Request, operator: bool) -> Json:
    vhost = request.vhost(management.node)
    columns, names = select_columns(request, COLUMNS, COLUMNS)
    policies = vhost.policies.operator if operator else vhost.policies.user_policies
    ordered = sorted(policies.values(), key=lambda policy: (policy.priority, policy.name))
    rows = []
    for policy in ordered:
        row = {
            "vhost": name_text(vhost.name),
            "name": policy.name,
            "pattern": policy.pattern,
            "apply-to": policy.apply_to,
            "definition": json.dumps(
                policy.definition, separators=(",", ":"), sort_keys=True, ensure_ascii=False
            ),
            "priority": policy.priority,
        }
        rows.append([row[name] for name in names])
    return table(columns, rows)


async def set_policy(management: Management, request: Request) -> None:
    await _set(management, request, False)


async def set_operator_policy(management: Management, request: Request) -> None:
    await _set(management, request, True)


async def clear_policy(management: Management, request: Request) -> None:
    await _clear(management, request, False)


async def clear_operator_policy(management: Management, request: Request) -> None:
    await _clear(management, request, True)


def list_policies(management: Management, request: Request) -> Json:
    return _list(management, request, False)


def list_operator_policies(management: Management, request: Request) -> Json:
    return _list(management, request, True)
