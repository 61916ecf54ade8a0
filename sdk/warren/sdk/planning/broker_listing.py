"""Listing of a virtual host: exchanges, queues, bindings and policies, from
the management HTTP API or Warren's control socket.

AMQP has no method that lists them. https://www.rabbitmq.com/docs/http-api-reference
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from warren.core.control_client import ControlError, send_request
from warren.sdk.planning.management_api import ListingError, ManagementApi
from warren.sdk.topology.binding import Binding

SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Policy:
    """Policy of a virtual host, which sets arguments of the exchanges or queues whose names match it.

    :ivar definition: its settings: `alternate-exchange`, `message-ttl`, ...
    """

    name: str
    definition: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """The contents of a virtual host, without the default exchange, its bindings, and names that begin with `amq.`.

    :ivar queues: arguments of the queues' declarations, by the queue's name.
    :ivar policies: the policy that takes effect on an exchange or a
        queue, by a pair of kind (`exchange` or `queue`) and name.
    """

    exchanges: frozenset[str]
    queues: Mapping[str, Mapping[str, Any]]
    bindings: tuple[Binding, ...]
    policies: Mapping[tuple[str, str], Policy]


def from_management(url: str, virtual_host: str, user: str, password: str) -> Listing:
    """Return the listing of a virtual host from RabbitMQ's management API, whose user needs the tag `management`.
    Blocks for at most 30 s for each request.

    :param url: `http://host:15672`; a user and password in it take precedence over the parameters.
    :raises ListingError: if the API does not reply, or its reply is not a listing.
    """
    api = ManagementApi(url, user, password)
    where = quote(virtual_host, safe="")
    kinds = ("exchanges", "queues", "bindings", "policies")
    found = {kind: api.get_list(f"{kind}/{where}") for kind in kinds}
    defined = {each["name"]: Policy(each["name"], each["definition"]) for each in found["policies"]}
    policies = {
        (kind, each["name"]): defined[each["policy"]]
        for kind, plural in (("exchange", "exchanges"), ("queue", "queues"))
        for each in found[plural]
        if each.get("policy") in defined
    }
    bindings = [
        Binding(
            each["source"],
            each["destination"],
            each["routing_key"],
            to_exchange=each["destination_type"] == "exchange",
            arguments=each["arguments"],
        )
        for each in found["bindings"]
        if each["source"]
    ]
    return _listing(
        [each["name"] for each in found["exchanges"]],
        {each["name"]: each["arguments"] for each in found["queues"]},
        bindings,
        policies,
    )


def from_control_socket(path: Path, virtual_host: str) -> Listing:
    """Return the listing of a virtual host from the control socket of a `warren broker` on this machine.
    Blocks for at most 30 s for each request.

    :raises ListingError: if the broker does not reply.
    """
    exchanges = _rows(path, "list_exchanges", virtual_host, ["name", "policy"])
    queues = _rows(path, "list_queues", virtual_host, ["name", "policy", "arguments"])
    bindings = [
        Binding(source, destination, key, kind == "exchange", _table(arguments))
        for source, destination, kind, key, arguments in _rows(
            path,
            "list_bindings",
            virtual_host,
            ["source_name", "destination_name", "destination_kind", "routing_key", "arguments"],
        )
        if source
    ]
    defined = {
        name: Policy(name, json.loads(definition))
        for _, name, _, _, definition, _ in _rows(path, "list_policies", virtual_host, [])
    }
    policies = {("exchange", name): defined[policy] for name, policy in exchanges if policy in defined}
    policies |= {("queue", name): defined[policy] for name, policy, _ in queues if policy in defined}
    arguments_by_queue = {name: _table(arguments) for name, _, arguments in queues}
    return _listing([row[0] for row in exchanges], arguments_by_queue, bindings, policies)


def _table(triples: list[list[Any]]) -> dict[str, Any]:
    """Return a table that the control socket lists as [name, type, value] triples."""
    return {name: value for name, _, value in triples}


def _listing(
    exchanges: list[str],
    queues: Mapping[str, Mapping[str, Any]],
    bindings: list[Binding],
    policies: dict[tuple[str, str], Policy],
) -> Listing:
    return Listing(
        frozenset(name for name in exchanges if name and not name.startswith("amq.")),
        {name: arguments for name, arguments in queues.items() if not name.startswith("amq.")},
        tuple(each for each in bindings if not each.destination.startswith("amq.")),
        policies,
    )


def _rows(path: Path, verb: str, virtual_host: str, items: list[str]) -> list[list[Any]]:
    try:
        rows: list[list[Any]] = send_request(path, verb, {"vhost": virtual_host, "items": items}, SECONDS)[
            "rows"
        ]
    except ControlError as error:
        raise ListingError(str(error)) from None
    return rows
