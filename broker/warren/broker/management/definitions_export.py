"""Export of definitions in RabbitMQ's format (https://www.rabbitmq.com/docs/definitions).

As in RabbitMQ, the default exchange, exchanges named `amq.*`, exclusive queues with their bindings, and messages are
left out. Unlike RabbitMQ, exchanges declared with `internal` are exported: an import without them would lose routes
that consist of bindings between exchanges.

The format is that of the RabbitMQ version that the broker imitates (`compat`). Newer versions read it, too.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from warren.broker.access.access_control import Access
from warren.broker.access.passwords import to_definitions as exported_hash
from warren.broker.management.json_values import name_text, plain_value
from warren.broker.management.request import Json
from warren.broker.management.time_slices import sort_in_steps
from warren.broker.management.verbs.users import user_limits
from warren.broker.management.verbs.virtual_hosts import vhost_limits
from warren.broker.model.policy.runtime_parameters import CLUSTER_ID, OPERATOR_POLICY, RuntimeParameters
from warren.broker.model.queue.queue import Queue
from warren.broker.model.queue.queue_arguments import DEFAULT_TYPE
from warren.broker.model.vhost.vhost_registry import VirtualHosts
from warren.wire import field_tables

if TYPE_CHECKING:
    from warren.broker.access.users import User
    from warren.broker.model.exchange.exchange import Exchange
    from warren.broker.model.rabbitmq_versions import VersionBehaviour
    from warren.broker.model.vhost.vhost import VirtualHost
    from warren.broker.model.vhost.vhost_settings import VirtualHostSettings


class BrokerMetadata(NamedTuple):
    """Objects of a broker that definitions describe: virtual hosts with their topology, users, runtime parameters."""

    virtual_hosts: VirtualHosts
    access: Access
    parameters: RuntimeParameters
    is_restored: bool = False
    """True while existing definitions are copied to it, which an earlier version may have accepted."""


def export_in_steps(metadata: BrokerMetadata, version: str) -> Generator[None, None, dict[str, Json]]:
    """Export all definitions, each kind in the order of its names.

    The generator yields after each definition, so that the caller can let the event loop run. An object that is deleted
    meanwhile may be exported or not, but no binding is exported without its source and destination.

    :param version: Warren's version, for `product_version`
    :return: the definitions, as the value of the generator
    """
    behaviour = metadata.virtual_hosts.compat
    hosts = [topology.vhost for _, topology in sorted(metadata.virtual_hosts.declarations.items())]
    settings = metadata.virtual_hosts.all()
    permissions = metadata.access.permissions
    queues = yield from _collected(_queue(queue, behaviour) for vhost in hosts for queue in _queues(vhost))
    exchanges = yield from _collected(each for vhost in hosts for each in _exchanges(vhost))
    ends = {("queue", each["vhost"], each["name"]) for each in queues}
    ends |= {("exchange", each["vhost"], each["name"]) for each in exchanges}
    bindings: list[Json] = []
    for vhost in hosts:
        yield from _export_bindings(vhost, ends, bindings)
    return {
        "rabbit_version": behaviour.version,
        "rabbitmq_version": behaviour.version,
        "product_name": "Warren",
        "product_version": version,
        "users": [_user(user) for user in metadata.access.users.all()],
        "vhosts": [_virtual_host(each, behaviour) for each in settings],
        "permissions": [asdict(each) for each in permissions.all()],
        "topic_permissions": [asdict(each) for each in permissions.topics()],
        "parameters": list(_parameters(metadata, hosts, settings)),
        "global_parameters": [
            {"name": name, "value": value}
            for name, value in sorted(metadata.parameters.globals.items())
            if name != CLUSTER_ID
        ],
        "policies": [
            {"vhost": name_text(vhost.name), "name": name, **policy.to_value()}
            for vhost in hosts
            for name, policy in sorted(vhost.policies.user_policies.items())
        ],
        "queues": queues,
        "exchanges": exchanges,
        "bindings": bindings,
    }


def _collected(definitions: Iterator[Json]) -> Generator[None, None, list[Json]]:
    found: list[Json] = []
    for each in definitions:
        found.append(each)
        yield
    return found


def _user(user: User) -> Json:
    return {
        "name": user.name,
        "password_hash": exported_hash(user.password),
        "hashing_algorithm": user.algorithm,
        "tags": list(user.tags),
        "limits": user_limits(user),
    }


def vhost_metadata(settings: VirtualHostSettings, behaviour: VersionBehaviour) -> dict[str, Json]:
    """Return the metadata of a virtual host as definitions show them."""
    metadata: dict[str, Json] = {"description": settings.description, "tags": list(settings.tags)}
    kind = settings.default_queue_type or (DEFAULT_TYPE if behaviour.exports_queue_types else "")
    if kind:
        metadata["default_queue_type"] = kind
    if settings.protected:
        metadata["protected_from_deletion"] = True
    return metadata


def _virtual_host(settings: VirtualHostSettings, behaviour: VersionBehaviour) -> Json:
    metadata = vhost_metadata(settings, behaviour)
    if behaviour.exports_queue_types:
        return {"name": settings.name, "limits": vhost_limits(settings), "metadata": metadata}
    # Twice, for readers of both kinds. The limits are among the parameters.
    return {"name": settings.name, "limits": [], "metadata": metadata, **metadata}


def _parameters(
    metadata: BrokerMetadata, hosts: list[VirtualHost], settings: list[VirtualHostSettings]
) -> Iterator[Json]:
    for vhost in hosts:
        for name, policy in sorted(vhost.policies.operator.items()):
            yield {
                "vhost": name_text(vhost.name),
                "component": OPERATOR_POLICY,
                "name": name,
                "value": policy.to_value(),
            }
    for each in settings:
        limits = vhost_limits(each)
        if limits:
            yield {"vhost": each.name, "component": "vhost-limits", "name": "limits", "value": limits}
    for (name_of, component, name), value in sorted(
        metadata.parameters.stored.items(), key=lambda kept: kept[0]
    ):
        yield {"vhost": name_text(name_of), "component": component, "name": name, "value": value}


def _arguments(raw: bytes) -> dict[str, Json]:
    return {name: plain_value(value) for name, value in field_tables.decode(raw).items()}


def _queues(vhost: VirtualHost) -> list[Queue]:
    return [queue for _, queue in sorted(vhost.queues.items()) if is_exported(queue)]


def is_exported(queue: Queue) -> bool:
    """Return True if definitions contain the queue: it is not exclusive, and its name does not begin with `amq.`.

    Names of that form belong to the broker: for example, it keeps delayed messages in queues named `amq.delayed.*`.
    """
    return queue.owner is None and not queue.name.startswith(b"amq.")


def _is_predeclared(destination: Queue | Exchange) -> bool:
    """Return True for the default exchange and `amq.*` exchanges, which every broker declares itself."""
    return not isinstance(destination, Queue) and destination.name.startswith(b"amq.")


def _queue(queue: Queue, behaviour: VersionBehaviour) -> Json:
    arguments = _arguments(queue.raw_arguments)
    topology = queue.vhost.declarations
    assert topology is not None
    # Without the argument, an import gives the queue the default type of the virtual host.
    if behaviour.exports_queue_types or topology.settings.default_queue_type not in ("", DEFAULT_TYPE):
        arguments.setdefault("x-queue-type", queue.declared_arguments.type_name)
    return {
        "vhost": name_text(queue.vhost.name),
        "name": name_text(queue.name),
        "type": queue.declared_arguments.type_name,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": arguments,
    }


def _exchanges(vhost: VirtualHost) -> Iterator[Json]:
    for name, exchange in sorted(vhost.exchanges.items()):
        if name and not name.startswith(b"amq."):
            found = {
                "vhost": name_text(vhost.name),
                "name": name_text(name),
                "type": name_text(exchange.kind),
                "durable": exchange.durable,
                "auto_delete": exchange.auto_delete,
                "arguments": _arguments(exchange.arguments),
            }
            # RabbitMQ has no such field, as it leaves these exchanges out.
            yield {**found, "internal": True} if exchange.internal else found


def _export_bindings(
    vhost: VirtualHost, ends: set[tuple[str, str, str]], found: list[Json]
) -> Generator[None, None, None]:
    """Append the bindings of a virtual host to `found`.

    :param ends: kind, virtual host and name of each exported queue and exchange.
    """
    host = name_text(vhost.name)
    for name, exchange in sorted(vhost.exchanges.items()):
        for key in (yield from sort_in_steps(exchange.bindings)):
            yield
            binding = exchange.bindings.get(key)
            if binding is None or binding.destination in exchange.deleted_destinations:
                continue
            destination = binding.destination
            kind = "queue" if isinstance(destination, Queue) else "exchange"
            if (kind, host, name_text(destination.name)) not in ends and not _is_predeclared(destination):
                continue
            found.append(
                {
                    "vhost": host,
                    "source": name_text(name),
                    "destination": name_text(destination.name),
                    "destination_type": kind,
                    "routing_key": name_text(binding.routing_key),
                    "arguments": _arguments(binding.arguments),
                }
            )
