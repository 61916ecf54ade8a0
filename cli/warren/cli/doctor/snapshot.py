"""State of a virtual host that `warren doctor` judges, independent of the interface from which it was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from warren.sdk.planning import QueueRole, role_of

if TYPE_CHECKING:
    from warren.cli.doctor.finding import Source


@dataclass(frozen=True, slots=True)
class QueueState:
    """State of a queue.

    :ivar definition: settings of its policies.
    :ivar ready: number of ready messages.
    :ivar held: number of dead letters whose target has not taken them yet.
    :ivar oldest: timestamp property of the oldest message, if the broker reports one.
    """

    name: str
    ready: int
    consumers: int
    unacked: int = 0
    held: int = 0
    type: str = "classic"
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    definition: Mapping[str, Any] = field(default_factory=dict)
    policy: str = ""
    oldest: datetime | None = None

    def setting(self, name: str) -> Any:
        """Return an argument, named without `x-`, or the policy's setting of that name; None if neither is there.

        Arguments take precedence over policies (https://www.rabbitmq.com/docs/parameters#policies).
        """
        value = self.arguments.get(f"x-{name}")
        return self.definition.get(name) if value is None else value

    @property
    def temporary(self) -> bool:
        """True for a queue that the broker deletes by itself."""
        return self.exclusive or self.auto_delete or self.setting("expires") is not None


@dataclass(frozen=True, slots=True)
class ExchangeState:
    """State of an exchange.

    :ivar published: messages that were published to it, if the broker counts them.
    """

    name: str
    type: str
    durable: bool = True
    internal: bool = False
    alternate: str | None = None
    policy: str = ""
    published: int | None = None


@dataclass(frozen=True, slots=True)
class BindingState:
    """A binding from an exchange to a queue or to another exchange."""

    source: str
    destination: str
    key: str
    to_exchange: bool = False


@dataclass(frozen=True, slots=True)
class PolicyState:
    """A policy and the pattern of the names that it is for.

    :ivar applies_to: `queues`, `exchanges`, `all`, or a type of queues such as `quorum_queues`.
    """

    name: str
    pattern: str
    applies_to: str
    definition: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """A client's connection.

    :ivar client: name that the client gave, or its product; empty if it gave none.
    :ivar heartbeat: seconds of the negotiated heartbeat; 0 for none.
    :ivar received: bytes that the broker received.
    """

    id: str
    name: str
    client: str
    user: str
    heartbeat: int
    received: int
    since: datetime | None = None
    address: str = ""


@dataclass(frozen=True, slots=True)
class ChannelState:
    """A channel.

    :ivar published: messages that were published on it, if the broker counts them.
    """

    id: str
    connection: str
    confirms: bool
    transactional: bool
    consumers: int
    unacked: int
    global_prefetch: int = 0
    published: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A consumer.

    :ivar channel: id of its channel.
    :ivar prefetch: its prefetch count; 0 for no limit.
    """

    queue: str
    channel: str
    tag: str
    acknowledges: bool
    prefetch: int


@dataclass(frozen=True)
class Snapshot:
    """State of a virtual host at one time.

    :ivar sources: parts of the state that could be read; the others are empty.
    :ivar nodes: nodes of the cluster, with True for those that run.
    :ivar alarms: resource alarms, each as text.
    :ivar deprecated: deprecated features in use that the broker itself reports, by name with its description.
    """

    broker: str
    at: float
    sources: frozenset[Source]
    queues: Sequence[QueueState] = ()
    exchanges: Sequence[ExchangeState] = ()
    bindings: Sequence[BindingState] = ()
    policies: Sequence[PolicyState] = ()
    connections: Sequence[ConnectionState] = ()
    channels: Sequence[ChannelState] = ()
    consumers: Sequence[ConsumerState] = ()
    nodes: Mapping[str, bool] = field(default_factory=dict)
    alarms: Sequence[str] = ()
    deprecated: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def queue_names(self) -> frozenset[str]:
        return frozenset(each.name for each in self.queues)

    @cached_property
    def exchange_names(self) -> frozenset[str]:
        return frozenset(each.name for each in self.exchanges)

    def role(self, queue: QueueState) -> QueueRole | None:
        """Return the role of a queue of Warren's own; None for a queue of an application."""
        return role_of(queue.name, queue.arguments, self.exchange_names)

    def dead_letter_queues(self) -> set[str]:
        """Return the names of the queues that get dead letters: by a binding of a dead letter exchange, or by name."""
        exchanges = set()
        found = {queue.name for queue in self.queues if self.role(queue) is QueueRole.DEAD_LETTERS}
        for queue in self.queues:
            exchange, key = queue.setting("dead-letter-exchange"), queue.setting("dead-letter-routing-key")
            if exchange == "" and key:
                found.add(str(key))
            elif exchange:
                exchanges.add(exchange)
        bound = {
            each.destination for each in self.bindings if each.source in exchanges and not each.to_exchange
        }
        return found | bound


@dataclass(frozen=True, slots=True)
class Samples:
    """Snapshots of one broker, taken one after another; the checks of growth compare them."""

    all: Sequence[Snapshot]

    @property
    def first(self) -> Snapshot:
        return self.all[0]

    @property
    def last(self) -> Snapshot:
        return self.all[-1]

    @property
    def seconds(self) -> float:
        """Time between the first and the last snapshot."""
        return self.last.at - self.first.at

    def queues(self) -> dict[str, list[QueueState]]:
        """Return the states of the queues that are in all snapshots, by name, the first one first."""
        by_name: dict[str, list[QueueState]] = {}
        for snapshot in self.all:
            for queue in snapshot.queues:
                by_name.setdefault(queue.name, []).append(queue)
        return {name: states for name, states in by_name.items() if len(states) == len(self.all)}
