"""Rows of the definitions database, as dataclasses. The first fields of each are its key; `TABLES` has their number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """A durable exchange. Names are bytes as on the wire; `arguments` is an encoded AMQP table."""

    vhost: bytes
    name: bytes
    type: bytes
    auto_delete: bool
    internal: bool
    arguments: bytes


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A durable queue that is not exclusive; `incarnation` is the unique number by which the log refers to it."""

    vhost: bytes
    name: bytes
    incarnation: int
    auto_delete: bool
    arguments: bytes


@dataclass(frozen=True, slots=True)
class BindingRow:
    """A binding from a durable exchange to a durable queue, or, with `to_exchange`, to a durable exchange."""

    vhost: bytes
    source: bytes
    destination: bytes
    to_exchange: bool
    routing_key: bytes
    arguments: bytes


@dataclass(frozen=True, slots=True)
class VirtualHostRow:
    """A virtual host. `tags` are separated by commas; a limit of None means no limit."""

    name: str
    description: str
    tags: str
    default_queue_type: str
    protected: bool
    max_connections: int | None
    max_queues: int | None


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user. `password` is salt and hash by `algorithm`; it is empty for a user without a password."""

    name: str
    password: bytes = field(repr=False)
    algorithm: str
    tags: str
    max_connections: int | None
    max_channels: int | None


@dataclass(frozen=True, slots=True)
class PermissionRow:
    """Permissions of a user in a virtual host, as regular expressions for the names of exchanges and queues."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class TopicPermissionRow:
    """Permissions of a user on a topic exchange, as regular expressions for routing keys."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """A runtime parameter of a virtual host; `value` is JSON. Policies are the parameters of the component `policy`."""

    vhost: bytes
    component: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class GlobalParameterRow:
    """A runtime parameter of the broker as a whole; `value` is JSON."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copy of all definitions in the database, with a tuple for each kind of row, ordered by key."""

    exchanges: tuple[ExchangeRow, ...] = ()
    queues: tuple[QueueRow, ...] = ()
    bindings: tuple[BindingRow, ...] = ()
    virtual_hosts: tuple[VirtualHostRow, ...] = ()
    users: tuple[UserRow, ...] = ()
    permissions: tuple[PermissionRow, ...] = ()
    topic_permissions: tuple[TopicPermissionRow, ...] = ()
    parameters: tuple[ParameterRow, ...] = ()
    global_parameters: tuple[GlobalParameterRow, ...] = ()


Row = (
    ExchangeRow
    | QueueRow
    | BindingRow
    | VirtualHostRow
    | UserRow
    | PermissionRow
    | TopicPermissionRow
    | ParameterRow
    | GlobalParameterRow
)

TABLES: Final[dict[type[Row], tuple[str, int]]] = {
    ExchangeRow: ("exchanges", 2),
    QueueRow: ("queues", 2),
    BindingRow: ("bindings", 6),
    VirtualHostRow: ("virtual_hosts", 1),
    UserRow: ("users", 1),
    PermissionRow: ("permissions", 2),
    TopicPermissionRow: ("topic_permissions", 3),
    ParameterRow: ("parameters", 3),
    GlobalParameterRow: ("global_parameters", 1),
}
"""Table of each kind of row, and the number of its key fields; in the order of the fields of `Snapshot`."""
