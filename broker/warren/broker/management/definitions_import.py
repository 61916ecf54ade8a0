"""Import of definitions in RabbitMQ's format (https://www.rabbitmq.com/docs/definitions).

The import is tried on a copy of the broker's metadata first, so that an invalid file changes nothing. Queues and exchanges
that exist stay as they are; users, virtual hosts, permissions, parameters and policies are overwritten by the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from typing import Final, TypeAlias

from warren.broker.access.access_control import Access
from warren.broker.access.passwords import SHA256
from warren.broker.management.definitions_export import BrokerMetadata, export_in_steps
from warren.broker.management.json_values import count_values, name_text
from warren.broker.management.limits_json import parse_limits
from warren.broker.management.request import Json, RequestRefused
from warren.broker.management.verbs.users import LIMITS as USER_LIMITS
from warren.broker.management.verbs.virtual_hosts import LIMITS as VHOST_LIMITS
from warren.broker.model.clock import Timer
from warren.broker.model.compat_checks import PortabilityChecks
from warren.broker.model.operator_errors import OperationRefused as ModelRefused
from warren.broker.model.policy.policies import Policy
from warren.broker.model.policy.policy_keys import InvalidPolicy
from warren.broker.model.policy.runtime_parameters import (
    OPERATOR_POLICY,
    POLICY,
    SHOVEL,
    RuntimeParameters,
)
from warren.broker.model.queue.queue_arguments import DEFAULT_TYPE
from warren.broker.model.server_names import LONGEST_NAME
from warren.broker.model.vhost.declarations import Declarations
from warren.broker.model.vhost.vhost_registry import VirtualHosts
from warren.wire import field_tables
from warren.wire.reply_codes import AmqpError

logger = logging.getLogger(__name__)

PREDECLARED: Final = "amq."
NAMES: Final = {"queues": "name", "exchanges": "name", "bindings": "routing_key"}
"""Fields that clients name objects with, by kind of definition."""
MOST_VALUES: Final = 10_000
"""JSON values that one definition may have; it is imported in one step."""


def import_in_steps(definitions: Json, metadata: BrokerMetadata) -> Generator[None, None, None]:
    """Import definitions, one for each step of the generator, so that the caller can let the event loop run.

    :param definitions: content of a definitions file, as parsed JSON
    :param metadata: objects of the broker, to which the definitions are added
    :raises RequestRefused: with the definition that is wrong; nothing is imported then
    """
    yield from _check_new(definitions)
    portability = PortabilityChecks.silent()
    hosts = VirtualHosts(
        StoppedClock(), None, None, compat=metadata.virtual_hosts.compat, portability=portability
    )
    dry_run = BrokerMetadata(hosts, Access(hosts, None), RuntimeParameters(hosts, None), is_restored=True)
    yield from _apply_definitions((yield from export_in_steps(metadata, "")), dry_run)
    dry_run = dry_run._replace(is_restored=False)
    # The checks of strict mode and of parameters apply to new definitions only, not to existing ones.
    portability.strict = metadata.virtual_hosts.portability.strict
    dry_run.parameters.checks = metadata.parameters.checks
    yield from _apply_definitions(definitions, dry_run)
    yield from _apply_definitions(definitions, metadata)


def _check_new(definitions: Json) -> Generator[None, None, None]:
    """Check that no definition of a file takes too long to be imported, and that a client can name what is new.

    AMQP transfers a name or a routing key with its length in one byte.

    :raises RequestRefused: with the definition that has too many values, or whose name is too long.
    """
    for kind in APPLY_BY_KIND:
        for index, fields in enumerate(_listed(definitions, kind)):
            definition = Definition(kind, index, fields)
            if count_values(fields, MOST_VALUES) > MOST_VALUES:
                raise definition.error(f"it has more than {MOST_VALUES} values")
            key = NAMES.get(kind)
            size = len(definition.text(key, "").encode("utf-8", "surrogateescape")) if key else 0
            if size > LONGEST_NAME:
                raise definition.error(f"{key} should be at most {LONGEST_NAME} bytes, actually was {size}")
            yield


def _listed(definitions: Json, kind: str) -> list[Json]:
    """Return the definitions of a kind.

    :raises RequestRefused: if the file has something else in their place.
    """
    if not isinstance(definitions, dict):
        raise RequestRefused("the definitions must be a JSON object")
    listed = definitions.get(kind, [])
    if not isinstance(listed, list):
        raise RequestRefused(f"{kind} must be a list")
    return listed


class StoppedClock:
    """Clock, whose timers never fire, for the copy of the broker's metadata on which an import is tried first."""

    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        return self

    def cancel(self) -> None:
        """Do nothing, as the timer of a stopped clock never fires."""


class Definition:
    """One definition of a file, with typed access to its fields. A field of the wrong type raises `RequestRefused`.

    :param kind: key of the list in the file that contains the definition, such as `queues`
    :param index: position in that list, from 0 on
    """

    def __init__(self, kind: str, index: int, fields: Json) -> None:
        self.kind = kind
        self.index = index
        if not isinstance(fields, dict):
            raise RequestRefused(f"{kind}[{index}] must be an object")
        self.fields = fields

    @property
    def label(self) -> str:
        """Kind, position and name of the definition, for error texts."""
        fields = self.fields
        name = fields.get("name", fields.get("user", fields.get("source")))
        if self.kind == "bindings":
            name = f"{fields.get('source')} -> {fields.get('destination')}"
        where = f" in vhost '{fields['vhost']}'" if isinstance(fields.get("vhost"), str) else ""
        return f"{self.kind}[{self.index}] '{name}'{where}"

    def error(self, reason: object) -> RequestRefused:
        return RequestRefused(f"{self.label}: {reason}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            raise self.error(f"{name} must be a text" if name in self.fields else f"{name} is missing")
        return value

    def data(self, name: str) -> bytes:
        return self.text(name).encode("utf-8", "surrogateescape")

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.fields.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{name} must be true or false")
        return value

    def tags(self, fields: dict[str, Json]) -> list[str]:
        """Return the field `tags` as a list; a file contains a list of texts, or one text with commas between tags.

        :param fields: JSON object with the field: the definition itself, or an object inside of it.
        """
        value = fields.get("tags") or []
        found = value.split(",") if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(tag, str) for tag in found):
            raise self.error("tags must be a list of texts")
        return [tag.strip() for tag in found if tag.strip()]

    def arguments(self) -> bytes:
        """Return the field `arguments`, a JSON object, as an encoded AMQP field table; empty if it is missing."""
        value = self.fields.get("arguments") or {}
        if not isinstance(value, dict):
            raise self.error("arguments must be an object")
        try:
            return field_tables.encode(value)
        except (ValueError, AttributeError) as error:
            raise self.error(error) from None

    def limits(self, value: Json, known: tuple[str, ...]) -> dict[str, int]:
        return parse_limits(as_object(value or {}), known, "limits")


Apply: TypeAlias = Callable[[Definition, BrokerMetadata], None]


def _apply_definitions(definitions: Json, metadata: BrokerMetadata) -> Iterator[None]:
    shovels: list[Definition] = []
    for kind, apply in APPLY_BY_KIND.items():
        for index, fields in enumerate(_listed(definitions, kind)):
            definition = Definition(kind, index, fields)
            if kind == "parameters" and definition.fields.get("component") == SHOVEL:
                shovels.append(definition)
                continue
            _apply(definition, apply, metadata)
            yield
    # Last: a shovel declares the queues that are missing, with arguments of its own.
    for definition in shovels:
        _apply(definition, _parameter, metadata)
        yield


def _apply(definition: Definition, apply: Apply, metadata: BrokerMetadata) -> None:
    """Apply one definition.

    :raises RequestRefused: if it is wrong.
    """
    try:
        apply(definition, metadata)
    except RequestRefused as reason:
        if str(reason).startswith(definition.label):
            raise
        raise definition.error(reason) from None
    except (ModelRefused, InvalidPolicy, field_tables.TableError) as reason:
        raise definition.error(reason) from None
    except AmqpError as error:
        raise definition.error(error.explanation) from None


def as_object(value: Json) -> Json:
    """Convert a list of [name, value] pairs to a JSON object; return any other value unchanged.

    RabbitMQ 3.10 exports some objects as such lists.
    """
    if isinstance(value, list) and value and all(_is_pair(item) for item in value):
        return {item[0]: as_object(item[1]) for item in value}
    return value


def _is_pair(item: Json) -> bool:
    return isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)


# -- apply a definition, by kind


def _user(definition: Definition, metadata: BrokerMetadata) -> None:
    users = metadata.access.users
    name, tags = definition.text("name"), definition.tags(definition.fields)
    hashed = definition.fields.get("password_hash")
    if name not in users:
        users.add(name)
    if hashed is not None:
        algorithm = definition.text("hashing_algorithm", SHA256)
        users.set_password_hash(name, definition.text("password_hash"), algorithm)
    elif definition.fields.get("password"):
        users.change_password(name, definition.text("password"))
    users.set_tags(name, tags)
    found = definition.limits(definition.fields.get("limits"), USER_LIMITS)
    users.set_limits(
        name, max_connections=found.get("max-connections"), max_channels=found.get("max-channels")
    )


def _virtual_host(definition: Definition, metadata: BrokerMetadata) -> None:
    hosts, name = metadata.virtual_hosts, definition.text("name")
    nested = definition.fields.get("metadata") or {}
    if not isinstance(nested, dict):
        raise definition.error("metadata must be an object")
    fields = {**definition.fields, **nested}
    kind = fields.get("default_queue_type")
    kind = "" if kind in (None, "undefined") else kind
    description = fields.get("description") or ""
    if not isinstance(description, str) or not isinstance(kind, str):
        raise definition.error("description and default_queue_type must be texts")
    if name not in hosts:
        hosts.add(name, is_restored=metadata.is_restored)
    hosts.update(
        name,
        description=description,
        tags=definition.tags(fields),
        default_queue_type=kind,
        protected=fields.get("protected_from_deletion") is True,
    )
    if definition.fields.get("limits"):
        _limit(definition, metadata, name, definition.fields["limits"])


def _limit(definition: Definition, metadata: BrokerMetadata, vhost: str, value: Json) -> None:
    found = definition.limits(value, VHOST_LIMITS)
    metadata.virtual_hosts.set_limits(
        vhost, max_connections=found.get("max-connections"), max_queues=found.get("max-queues")
    )


def _permission(definition: Definition, metadata: BrokerMetadata) -> None:
    text = definition.text
    metadata.access.permissions.set(
        text("user"), text("vhost"), text("configure"), text("write"), text("read")
    )


def _topic_permission(definition: Definition, metadata: BrokerMetadata) -> None:
    text = definition.text
    metadata.access.permissions.set_topic(
        text("user"), text("vhost"), text("exchange"), text("write"), text("read")
    )


def _global_parameter(definition: Definition, metadata: BrokerMetadata) -> None:
    metadata.parameters.set_global(definition.text("name"), as_object(definition.fields.get("value")))


def _policy(definition: Definition, metadata: BrokerMetadata) -> None:
    topology = metadata.virtual_hosts.declarations_of(definition.text("vhost"))
    value = {**definition.fields, "definition": as_object(definition.fields.get("definition"))}
    policy = Policy.from_value(definition.text("name"), value, False)
    metadata.parameters.set_policy(topology.vhost, policy, is_restored=metadata.is_restored)


def _parameter(definition: Definition, metadata: BrokerMetadata) -> None:
    vhost, component, name = (definition.text(field) for field in ("vhost", "component", "name"))
    topology = metadata.virtual_hosts.declarations_of(vhost)
    value = as_object(definition.fields.get("value"))
    if component == "vhost-limits":
        _limit(definition, metadata, vhost, value)
    elif component in (POLICY, OPERATOR_POLICY):
        if isinstance(value, dict):
            value = {**value, "definition": as_object(value.get("definition"))}
        policy = Policy.from_value(name, value, component == OPERATOR_POLICY)
        metadata.parameters.set_policy(topology.vhost, policy, is_restored=metadata.is_restored)
    else:
        metadata.parameters.set(topology.vhost.name, component, name, value)


def _exchange(definition: Definition, metadata: BrokerMetadata) -> None:
    topology, name = _topology(definition, metadata), definition.data("name")
    if _is_predeclared(definition, name) or name in topology.vhost.exchanges:
        return
    topology.declare_exchange(
        name,
        definition.data("type"),
        definition.flag("durable", True),
        definition.flag("auto_delete"),
        definition.flag("internal"),
        definition.arguments(),
        is_restored=metadata.is_restored,
    )


def _queue(definition: Definition, metadata: BrokerMetadata) -> None:
    topology, name = _topology(definition, metadata), definition.data("name")
    if _is_predeclared(definition, name) or name in topology.vhost.queues:
        return
    raw = definition.arguments()
    durable, auto_delete = definition.flag("durable", True), definition.flag("auto_delete")
    kind = definition.text("type", DEFAULT_TYPE)
    if kind != DEFAULT_TYPE and "x-queue-type" not in (definition.fields.get("arguments") or {}):
        # RabbitMQ looks at the argument only. Files that were written by hand may name the type here.
        raw += field_tables.encode({"x-queue-type": kind})
    # As for clients, which declare the same queue without a type.
    raw = topology.settings.with_default_queue_type(raw, durable, False, auto_delete)
    topology.declare_queue(name, durable, False, auto_delete, raw, None, is_restored=metadata.is_restored)


def _binding(definition: Definition, metadata: BrokerMetadata) -> None:
    topology = _topology(definition, metadata)
    source, destination = definition.data("source"), definition.data("destination")
    kind = definition.text("destination_type")
    if kind not in ("queue", "exchange"):
        raise definition.error(f"destination_type must be 'queue' or 'exchange', not '{kind}'")
    for exchange in (source, destination) if kind == "exchange" else (source,):
        if not exchange:
            # RabbitMQ has such bindings in its exports. It refuses to make them otherwise.
            _log_skipped_binding(definition, exchange)
            return
        if exchange not in topology.vhost.exchanges:
            # RabbitMQ exports the bindings of internal exchanges without the exchanges, and skips them, too.
            _log_skipped_binding(definition, exchange)
            return
    topology.bind(
        topology.exchange(source),
        topology.queue(destination, None) if kind == "queue" else topology.exchange(destination),
        definition.text("routing_key", "").encode("utf-8", "surrogateescape"),
        definition.arguments(),
    )


def _log_skipped_binding(definition: Definition, exchange: bytes) -> None:
    logger.warning(
        "event=definitions.binding_skipped definition=%s exchange=%r", definition.label, name_text(exchange)
    )


def _topology(definition: Definition, metadata: BrokerMetadata) -> Declarations:
    return metadata.virtual_hosts.declarations_of(definition.text("vhost"))


def _is_predeclared(definition: Definition, name: bytes) -> bool:
    """Return True if `name` is empty (the default exchange) or `amq.*`: the broker declares such exchanges itself.

    Such a definition is not imported, which is logged.
    """
    if name and not name.startswith(PREDECLARED.encode()):
        return False
    logger.debug("event=definitions.skipped definition=%s", definition.label)
    return True


APPLY_BY_KIND: Final[dict[str, Apply]] = {
    "vhosts": _virtual_host,
    "users": _user,
    "permissions": _permission,
    "topic_permissions": _topic_permission,
    "exchanges": _exchange,
    "global_parameters": _global_parameter,
    "policies": _policy,
    "parameters": _parameter,
    "queues": _queue,
    "bindings": _binding,
}
"""Functions that import one definition of each kind, in the order in which kinds depend on each other."""
