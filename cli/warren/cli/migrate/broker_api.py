"""HTTP API of one side of a migration: queues, connections, delays, definitions of one virtual host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from warren.sdk.planning import ListingError, ManagementApi

CONNECTION_NAME: Final = "warren migrate"
"""Beginning of the names of the tool's own connections."""
STATISTICS_SECONDS: Final = 6.0
"""Seconds after which RabbitMQ's numbers show what has happened: it collects them every 5 s by default."""
EXCHANGE_PREFIX: Final = "warren.migrate."
"""Beginning of the names of the exchanges through which the tool publishes."""
COPIED_KINDS: Final = ("exchanges", "queues", "bindings", "policies")
LEFT_PARAMETERS: Final = ("shovel", "federation-upstream", "federation-upstream-set")
"""Components of runtime parameters that move messages themselves: a second instance would interfere with the first."""

Json = dict[str, Any]


@dataclass(frozen=True)
class QueueInfo:
    """A queue as the HTTP API lists it."""

    name: str
    type: str
    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: Json
    policy: Json
    """Effective policy definition."""
    ready: int | None
    """Ready messages; None while the broker has no numbers of the queue yet."""
    unacknowledged: int | None
    consumers: int | None

    @property
    def messages(self) -> int | None:
        """Ready and unacknowledged messages; None if they are not known."""
        if self.ready is None or self.unacknowledged is None:
            return None
        return self.ready + self.unacknowledged

    @property
    def message_ttl(self) -> int | None:
        """Milliseconds after which the queue's messages expire; None if they do not."""
        value = self.arguments.get("x-message-ttl", self.policy.get("message-ttl"))
        return value if isinstance(value, int) else None

    @property
    def dead_letters(self) -> bool:
        """True if messages that expire go to a dead letter exchange."""
        return "x-dead-letter-exchange" in self.arguments or "dead-letter-exchange" in self.policy

    @property
    def keeps_order(self) -> bool:
        """True if requeued messages are the first to be delivered again, in their order."""
        return self.type == "classic" and "x-max-priority" not in self.arguments

    @property
    def is_single_active(self) -> bool:
        return bool(self.arguments.get("x-single-active-consumer"))


@dataclass(frozen=True)
class Overview:
    """Product and features of a broker."""

    product: str
    version: str
    exchange_types: frozenset[str] = field(repr=False)

    @property
    def is_warren(self) -> bool:
        return self.product == "Warren"


class BrokerApi:
    """HTTP API of a broker, for one virtual host. Each call blocks until the API answers.

    :param api: the API; its user needs the tag `administrator`.
    """

    def __init__(self, api: ManagementApi, virtual_host: str) -> None:
        self._api = api
        self.virtual_host = virtual_host
        self._path = quote(virtual_host, safe="")

    def overview(self) -> Overview:
        """Return the broker's product and features.

        :raises ListingError: if the API does not answer, or refuses the user.
        """
        found = self._object("overview")
        return Overview(
            str(found.get("product_name", "RabbitMQ")),
            str(found.get("product_version") or found.get("rabbitmq_version", "")),
            frozenset(str(each.get("name")) for each in found.get("exchange_types", ())),
        )

    def queues(self) -> list[QueueInfo]:
        """Return the queues of the virtual host; none if it does not exist.

        :raises ListingError: if the API does not answer, or refuses the user.
        """
        return [_queue_info(each) for each in self._api.get(f"queues/{self._path}") or ()]

    def other_connections(self) -> int:
        """Return the number of connections to the virtual host that are not this tool's.

        :raises ListingError: if the API does not answer, or refuses the user.
        """
        return sum(
            each.get("vhost") == self.virtual_host and not _is_own(each)
            for each in self._api.get_list("connections")
        )

    def delayed_messages(self) -> int:
        """Return how many messages wait in delayed exchanges and for delayed retries of a Warren broker.

        :raises ListingError: if the API does not answer, or refuses the user.
        """
        found = self._api.get(f"warren/delays/{self._path}") or ()
        return sum(int(each["messages"]) for each in found if each["kind"] in ("exchange", "retry"))

    def user_tags(self) -> list[str]:
        """Return the tags of the user of this API.

        :raises ListingError: if the API does not answer, or refuses the user.
        """
        tags = self._object("whoami").get("tags") or []
        return tags.split(",") if isinstance(tags, str) else [str(each) for each in tags]

    def definitions(self) -> Json:
        """Return the definitions of the whole broker.

        :raises ListingError: if the API does not answer, or refuses the user.
        """
        return self._object("definitions")

    def import_definitions(self, definitions: Json) -> None:
        """Import definitions.

        :raises ListingError: if the broker refuses them; with its reason.
        """
        self._api.post("definitions", definitions)

    def _object(self, path: str) -> Json:
        found = self._api.get(path)
        if not isinstance(found, dict):
            raise ListingError(f"the management API has no {path}")
        return found


def copied_definitions(source: Json, target: Json, from_vhost: str, to_vhost: str) -> Json:
    """Return the definitions of one virtual host of the source that the target does not have.

    Users come with their permissions for the virtual host, unless the target has a user of that name.

    :param source: all definitions of the source.
    :param target: all definitions of the target.
    """
    existing_users = {each["name"] for each in target.get("users", ())}
    users = [each for each in source.get("users", ()) if each["name"] not in existing_users]
    names = {each["name"] for each in users}
    existing = {
        kind: {_identity(kind, each) for each in target.get(kind, ()) if each.get("vhost") == to_vhost}
        for kind in COPIED_KINDS
    }
    copied: Json = {}
    for kind in COPIED_KINDS:
        moved = [
            {**each, "vhost": to_vhost} for each in source.get(kind, ()) if each.get("vhost") == from_vhost
        ]
        copied[kind] = [
            each for each in moved if _identity(kind, each) not in existing[kind] and not _is_tool_made(each)
        ]
    copied["vhosts"] = [
        # Versions before 3.12 read description and tags at the top level only.
        {**each.get("metadata", {}), **each, "name": to_vhost}
        for each in source.get("vhosts", ())
        if each["name"] == from_vhost
    ]
    if any(each["name"] == to_vhost for each in target.get("vhosts", ())):
        copied["vhosts"] = []
    for kind in ("permissions", "topic_permissions"):
        copied[kind] = [
            {**each, "vhost": to_vhost}
            for each in source.get(kind, ())
            if each["vhost"] == from_vhost and each["user"] in names
        ]
    kept = {(each["vhost"], each["component"], each["name"]) for each in target.get("parameters", ())}
    copied["parameters"] = [
        {**each, "vhost": to_vhost}
        for each in source.get("parameters", ())
        if each["vhost"] == from_vhost
        and each["component"] not in LEFT_PARAMETERS
        and (to_vhost, each["component"], each["name"]) not in kept
    ]
    copied["users"] = users
    return {kind: each for kind, each in copied.items() if each}


def _identity(kind: str, definition: Json) -> tuple[str, ...]:
    if kind != "bindings":
        return (str(definition["name"]),)
    keys = ("source", "destination_type", "destination", "routing_key")
    return (*(str(definition[key]) for key in keys), repr(sorted(definition["arguments"].items())))


def _is_tool_made(definition: Json) -> bool:
    name = definition.get("source", definition.get("name", ""))
    return str(name).startswith(EXCHANGE_PREFIX)


def _is_own(connection: Json) -> bool:
    name = (connection.get("client_properties") or {}).get("connection_name", "")
    return str(name).startswith(CONNECTION_NAME)


def _queue_info(found: Json) -> QueueInfo:
    return QueueInfo(
        name=found["name"],
        type=found.get("type", "classic"),
        durable=found["durable"],
        auto_delete=found["auto_delete"],
        exclusive=bool(found.get("exclusive", False)),
        arguments=found.get("arguments") or {},
        policy=found.get("effective_policy_definition") or {},
        ready=found.get("messages_ready"),
        unacknowledged=found.get("messages_unacknowledged"),
        consumers=found.get("consumers"),
    )
