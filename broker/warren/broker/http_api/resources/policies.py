"""Policies and operator policies."""

from __future__ import annotations

from warren.broker.http_api.api_error import object_not_found
from warren.broker.http_api.call import CREATED, NO_CONTENT, Call, Response
from warren.broker.http_api.listing_response import list_objects
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json
from warren.broker.management.verbs import policies as policy_verbs
from warren.broker.model.policy.policies import Policy
from warren.broker.model.vhost.declarations import Declarations


def _policies(topology: Declarations, operator: bool) -> dict[str, Policy]:
    policies = topology.vhost.policies
    return policies.operator if operator else policies.user_policies


def _row(topology: Declarations, policy: Policy) -> Json:
    return {
        "vhost": name_text(topology.vhost.name),
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": policy.definition,
        "priority": policy.priority,
    }


async def _list(call: Call, hosts: list[Declarations], operator: bool) -> Response:
    found = [
        (topology, policy)
        for topology in hosts
        for _, policy in sorted(_policies(topology, operator).items())
    ]
    return await list_objects(call, found, lambda each: each[1].name, lambda each: _row(*each))


async def list_all(call: Call) -> Response:
    return await _list(call, call.all_visible(), False)


async def list_in_vhost(call: Call) -> Response:
    return await _list(call, [call.visible()], False)


async def list_all_operator(call: Call) -> Response:
    return await _list(call, call.all_visible(), True)


async def list_operator_in_vhost(call: Call) -> Response:
    return await _list(call, [call.visible()], True)


def _show(call: Call, operator: bool) -> Response:
    topology = call.visible()
    policy = _policies(topology, operator).get(call.name("name"))
    if policy is None:
        raise object_not_found()
    return Response(body=call.select(_row(topology, policy)))


async def show(call: Call) -> Response:
    return _show(call, False)


async def show_operator(call: Call) -> Response:
    return _show(call, True)


async def _put(call: Call, operator: bool) -> Response:
    topology = call.visible()
    body = call.body("pattern", "definition")
    name = call.name("name")
    existing = name in _policies(topology, operator)
    await call.perform(
        policy_verbs.set_operator_policy if operator else policy_verbs.set_policy,
        vhost=call.name("vhost"),
        name=name,
        pattern=body["pattern"],
        definition=body["definition"],
        apply_to=body.get("apply-to", "all"),
        priority=body.get("priority", 0),
    )
    return Response(NO_CONTENT if existing else CREATED)


async def put(call: Call) -> Response:
    return await _put(call, False)


async def put_operator(call: Call) -> Response:
    return await _put(call, True)


async def _delete(call: Call, operator: bool) -> Response:
    call.visible()
    _show(call, operator)
    clear = policy_verbs.clear_operator_policy if operator else policy_verbs.clear_policy
    await call.perform(clear, vhost=call.name("vhost"), name=call.name("name"))
    return Response(NO_CONTENT)


async def delete(call: Call) -> Response:
    return await _delete(call, False)


async def delete_operator(call: Call) -> Response:
    return await _delete(call, True)
