"""Definitions in RabbitMQ's format, taken in: the whole file is tried on a copy first, so that a bad one changes nothing.

https://www.rabbitmq.com/docs/definitions. What is there already stays: queues and exchanges are left as they are; users,
virtual hosts, permissions, parameters and policies become what the file says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from typing import Final, TypeAlias

from warren.broker.access.access_control import Access
from warren.broker.access.passwords import SHA256
from warren.broker.management.definitions_export import Holdings, exporting
from warren.broker.management.limits_json import limits
from warren.broker.management.request import Json, Refused
from warren.broker.management.verbs.users import LIMITS as USER_LIMITS
from warren.broker.management.verbs.virtual_hosts import LIMITS as VHOST_LIMITS
from warren.broker.model.clock import Timer
from warren.broker.model.compat_checks import PortabilityChecks
from warren.broker.model.names import refuse_default_exchange
from warren.broker.model.operator_errors import OperationRefused as ModelRefused
from warren.broker.model.policy.policy_keys import InvalidPolicy
from warren.broker.model.policy.runtime_parameters import (
    OPERATOR_POLICY,
    POLICY,
    RuntimeParameters,
    policy_from_value,
)
from warren.broker.model.vhost.declarations import Declarations
from warren.broker.model.vhost.vhost_registry import VirtualHosts
from warren.wire import field_tables
from warren.wire.reply_codes import AmqpError

logger = logging.getLogger(__name__)

PREDECLARED: Final = "amq."


def take_in(definitions: Json, holdings: Holdings) -> Generator[None, None, None]:
    """Take definitions in. It yields after each one, for whoever wants to do something else in between.

    :raises Refused: naming the definition that is wrong; then nothing has changed.
    """
    portability = PortabilityChecks.silent()
    hosts = VirtualHosts(NoTime(), None, None, compat=holdings.virtual_hosts.compat, portability=portability)
    rehearsal = Holdings(hosts, Access(hosts, None), RuntimeParameters(hosts, None))
    yield from _apply((yield from exporting(holdings, "")), rehearsal)
    # What is there is not judged again.
    portability.strict = holdings.virtual_hosts.portability.strict
    yield from _apply(definitions, rehearsal)
    yield from _apply(definitions, holdings)


class NoTime:
    """The clock of the copy: nothing in it ever happens by itself."""

    def now(self) -> float:
        return 0.0

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        return self

    def cancel(self) -> None:
        """What was to happen never happens anyway."""


class Definition:
    """One definition of a file. Its fields are taken as what they have to be, or it is refused."""

    def __init__(self, kind: str, index: int, fields: Json) -> None:
        self.kind = kind
        self.index = index
        if not isinstance(fields, dict):
            raise Refused(f"{kind}[{index}] has to be an object")
        self.fields = fields

    @property
    def label(self) -> str:
        """What a refusal calls it."""
        fields = self.fields
        name = fields.get("name", fields.get("user", fields.get("source")))
        if self.kind == "bindings":
            name = f"{fields.get('source')} -> {fields.get('destination')}"
        where = f" in vhost '{fields['vhost']}'" if isinstance(fields.get("vhost"), str) else ""
        return f"{self.kind}[{self.index}] '{name}'{where}"

    def refused(self, reason: object) -> Refused:
        return Refused(f"{self.label}: {reason}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            raise self.refused(f"{name} has to be a text" if name in self.fields else f"{name} is missing")
        return value

    def data(self, name: str) -> bytes:
        return self.text(name).encode("utf-8", "surrogateescape")

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.fields.get(name, default)
        if not isinstance(value, bool):
            raise self.refused(f"{name} has to be true or false")
        return value

    def tags(self, fields: dict[str, Json]) -> list[str]:
        """A list of texts, or one text with commas."""
        value = fields.get("tags") or []
        found = value.split(",") if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(tag, str) for tag in found):
            raise self.refused("tags have to be a list of texts")
        return [tag.strip() for tag in found if tag.strip()]

    def arguments(self) -> bytes:
        """An encoded table."""
        value = self.fields.get("arguments") or {}
        if not isinstance(value, dict):
            raise self.refused("arguments have to be an object")
        try:
            return field_tables.encode(value)
        except (ValueError, AttributeError) as error:
            raise self.refused(error) from None

    def limits(self, value: Json, known: tuple[str, ...]) -> dict[str, int]:
        return limits(as_object(value or {}), known, "limits")


Apply: TypeAlias = Callable[[Definition, Holdings], None]


def _apply(definitions: Json, holdings: Holdings) -> Iterator[None]:
    if not isinstance(definitions, dict):
        raise Refused("definitions are a JSON object")
    for kind, apply in KINDS.items():
        listed = definitions.get(kind, [])
        if not isinstance(listed, list):
            raise Refused(f"{kind} has to be a list")
        for index, fields in enumerate(listed):
            definition = Definition(kind, index, fields)
            try:
                apply(definition, holdings)
            except Refused as reason:
                if str(reason).startswith(definition.label):
                    raise
                raise definition.refused(reason) from None
            except (ModelRefused, InvalidPolicy, field_tables.TableError) as reason:
                raise definition.refused(reason) from None
            except AmqpError as error:
                raise definition.refused(error.explanation) from None
            yield


def as_object(value: Json) -> Json:
    """RabbitMQ 3.10 writes some objects as a list of pairs."""
    if isinstance(value, list) and value and all(_is_pair(item) for item in value):
        return {item[0]: as_object(item[1]) for item in value}
    return value


def _is_pair(item: Json) -> bool:
    return isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)


# -- by kind


def _user(definition: Definition, holdings: Holdings) -> None:
    users = holdings.access.users
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


def _virtual_host(definition: Definition, holdings: Holdings) -> None:
    hosts, name = holdings.virtual_hosts, definition.text("name")
    metadata = definition.fields.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise definition.refused("metadata has to be an object")
    said = {**definition.fields, **metadata}
    kind = said.get("default_queue_type")
    kind = "" if kind in (None, "undefined") else kind
    description = said.get("description") or ""
    if not isinstance(description, str) or not isinstance(kind, str):
        raise definition.refused("description and default_queue_type have to be texts")
    if name not in hosts:
        hosts.add(name)
    hosts.update(
        name,
        description=description,
        tags=definition.tags(said),
        default_queue_type=kind,
        protected=said.get("protected_from_deletion") is True,
    )
    if definition.fields.get("limits"):
        _limit(definition, holdings, name, definition.fields["limits"])


def _limit(definition: Definition, holdings: Holdings, vhost: str, value: Json) -> None:
    found = definition.limits(value, VHOST_LIMITS)
    holdings.virtual_hosts.set_limits(
        vhost, max_connections=found.get("max-connections"), max_queues=found.get("max-queues")
    )


def _permission(definition: Definition, holdings: Holdings) -> None:
    text = definition.text
    holdings.access.permissions.set(
        text("user"), text("vhost"), text("configure"), text("write"), text("read")
    )


def _topic_permission(definition: Definition, holdings: Holdings) -> None:
    text = definition.text
    holdings.access.permissions.set_topic(
        text("user"), text("vhost"), text("exchange"), text("write"), text("read")
    )


def _global_parameter(definition: Definition, holdings: Holdings) -> None:
    holdings.parameters.set_global(definition.text("name"), as_object(definition.fields.get("value")))


def _policy(definition: Definition, holdings: Holdings) -> None:
    topology = holdings.virtual_hosts.declarations_of(definition.text("vhost"))
    value = {**definition.fields, "definition": as_object(definition.fields.get("definition"))}
    holdings.parameters.set_policy(topology.vhost, policy_from_value(definition.text("name"), value, False))


def _parameter(definition: Definition, holdings: Holdings) -> None:
    vhost, component, name = (definition.text(field) for field in ("vhost", "component", "name"))
    topology = holdings.virtual_hosts.declarations_of(vhost)
    value = as_object(definition.fields.get("value"))
    if component == "vhost-limits":
        _limit(definition, holdings, vhost, value)
    elif component in (POLICY, OPERATOR_POLICY):
        if isinstance(value, dict):
            value = {**value, "definition": as_object(value.get("definition"))}
        policy = policy_from_value(name, value, component == OPERATOR_POLICY)
        holdings.parameters.set_policy(topology.vhost, policy)
    else:
        holdings.parameters.set(topology.vhost.name, component, name, value)


def _exchange(definition: Definition, holdings: Holdings) -> None:
    topology, name = _topology(definition, holdings), definition.data("name")
    if _is_predeclared(definition, name) or name in topology.vhost.exchanges:
        return
    topology.declare_exchange(
        name,
        definition.data("type"),
        definition.flag("durable", True),
        definition.flag("auto_delete"),
        definition.flag("internal"),
        definition.arguments(),
    )


def _queue(definition: Definition, holdings: Holdings) -> None:
    topology, name = _topology(definition, holdings), definition.data("name")
    if _is_predeclared(definition, name) or name in topology.vhost.queues:
        return
    raw = definition.arguments()
    kind = definition.text("type", "classic")
    if "x-queue-type" not in (definition.fields.get("arguments") or {}) and (
        kind != "classic" or topology.settings.default_queue_type
    ):
        raw += field_tables.encode({"x-queue-type": kind})
    topology.declare_queue(
        name, definition.flag("durable", True), False, definition.flag("auto_delete"), raw, None
    )


def _binding(definition: Definition, holdings: Holdings) -> None:
    topology = _topology(definition, holdings)
    source, destination = definition.data("source"), definition.data("destination")
    refuse_default_exchange(source)
    kind = definition.text("destination_type")
    if kind not in ("queue", "exchange"):
        raise definition.refused(f"destination_type is 'queue' or 'exchange', not '{kind}'")
    topology.bind(
        topology.exchange(source),
        topology.queue(destination, None) if kind == "queue" else topology.exchange(destination),
        definition.text("routing_key", "").encode("utf-8", "surrogateescape"),
        definition.arguments(),
    )


def _topology(definition: Definition, holdings: Holdings) -> Declarations:
    return holdings.virtual_hosts.declarations_of(definition.text("vhost"))


def _is_predeclared(definition: Definition, name: bytes) -> bool:
    """The server makes those itself, with names that nobody else may give."""
    if name and not name.startswith(PREDECLARED.encode()):
        return False
    logger.debug("event=definition_skipped definition=%r", definition.label)
    return True


KINDS: Final[dict[str, Apply]] = {
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
"""In the order in which one needs another."""
