"""An exchange: its bindings, and the search for the destinations that match a routing key and headers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Union

from warren.broker.model.exchange.headers import HeadersPattern, comparison_key
from warren.broker.model.exchange.topic import TopicTrie

if TYPE_CHECKING:
    from warren.broker.model.deduplication import DeduplicationWindow
    from warren.broker.model.exchange.binding_selector import BindingSelector
    from warren.broker.model.exchange.recent_history import RecentHistory
    from warren.broker.model.queue.queue import Queue
    from warren.wire.field_tables import Field

TYPES = (b"direct", b"fanout", b"topic", b"headers")


class Binding:
    """A binding of a queue or an exchange to a source exchange, which holds it in its attribute `bindings`.

    Source, destination, routing key and arguments together identify it.

    :param arguments: the arguments of the binding, an encoded table.
    """

    def __init__(self, destination: Union[Queue, Exchange], routing_key: bytes, arguments: bytes) -> None:  # noqa: UP007
        self.destination = destination
        self.routing_key = routing_key
        self.arguments = arguments

    @property
    def durable(self) -> bool:
        """True if the destination is durable."""
        return self.destination.durable

    def queue_type(self) -> str:
        """Return the type of the queue that is bound, such as `classic`; an empty text if an exchange is bound."""
        destination = self.destination
        return "" if isinstance(destination, Exchange) else destination.arguments.type_name


class Exchange:
    """One exchange, the bindings from it, and its cache of routes.

    :param kind: the declared type, such as `topic`.
    :param internal: True if only other exchanges, no clients, may publish to it.
    :param arguments: the declared arguments, an encoded table.
    """

    def __init__(
        self, name: bytes, kind: bytes, durable: bool, auto_delete: bool, internal: bool, arguments: bytes
    ) -> None:
        self.name = name
        self.kind = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments
        self.alternate: bytes | None = None
        """Name of the alternate exchange, by argument or policy."""
        self.matching_type = kind
        """Type by which bindings are matched: `kind`, or for a delayed exchange its argument x-delayed-type."""
        self.selector: BindingSelector | None = None
        """Part of hash and random exchanges that selects one binding for each message; None in other exchanges."""
        self.is_delayed = False
        """True for an `x-delayed-message` exchange."""
        self.window: DeduplicationWindow | None = None
        """Keys of recent messages, by which the exchange drops duplicates; None if it does not deduplicate."""
        self.delay_queue: Queue | None = None
        """Internal queue in which messages wait for their delay; None unless it is a delayed exchange."""
        self.recent_history: RecentHistory | None = None
        """Last messages of an `x-recent-history` exchange, which a newly bound queue gets; None for other types."""
        self.bindings: dict[tuple[bool, bytes, bytes, bytes], Binding] = {}
        """Bindings from this exchange, by (True for a queue, name of the queue or exchange, routing key, arguments).

        Those to the destinations in `deleted_destinations` are among them until bulk work has removed them.
        """
        self.deleted_destinations: dict[Union[Queue, Exchange], int] = {}  # noqa: UP007
        """Deleted queues and exchanges with the number of bindings to each that have yet to be removed.

        Nothing is routed to them any more.
        """
        self.incoming_bindings: dict[Exchange, dict[tuple[bytes, bytes], bool]] = {}
        """Keys (routing key, encoded arguments) of the bindings to this exchange, by source exchange.

        The inner dicts serve as ordered sets. A source may be an exchange that was just deleted.
        """
        self.direct: dict[bytes, list[Binding]] = {}
        """Bindings from this exchange by their routing key; empty for a topic exchange, which has a trie instead."""
        self.topic = TopicTrie()
        self.header_patterns: dict[Binding, HeadersPattern] = {}
        self.routes: dict[bytes, list[Queue]] = {}
        """Cache: for each routing key the queues that it reaches, also by way of other exchanges."""
        self.routes_epoch = -1
        """Value of the virtual host's `routing_epoch` when the cache `routes` was filled.

        A different one invalidates it.
        """
        self.exchange_binding_count = 0
        """Number of bindings whose destination is an exchange."""
        self.published_in = 0
        """Messages that clients published to it."""
        self.published_out = 0
        """Copies of those messages that it routed to queues."""
        self.unroutable_dropped = 0
        """Number of messages that reached no queue and were dropped."""
        self.unroutable_returned = 0
        """Number of mandatory messages that reached no queue and were returned."""

    def bind(self, binding: Binding, is_queue: bool) -> bool:
        """Add a binding. Return False if it exists already.

        :param is_queue: True if the destination is a queue, False if it is an exchange.
        :raises AmqpError: 406 if the exchange type does not allow the binding, for example with an invalid x-match.
        """
        key = (is_queue, binding.destination.name, binding.routing_key, binding.arguments)
        existing = self.bindings.get(key)
        if existing is not None:
            if existing.destination not in self.deleted_destinations:
                return False
            # It is to a deleted queue or exchange of the same name.
            self._remove_dead(key, existing)
        if self.selector is not None:
            self.selector.add(binding)
        if self.matching_type == b"headers":
            self.header_patterns[binding] = HeadersPattern(binding.arguments)
        self.bindings[key] = binding
        self.exchange_binding_count += not is_queue
        incoming = binding.destination.incoming_bindings
        incoming.setdefault(self, {})[binding.routing_key, binding.arguments] = True
        if self.matching_type == b"topic":
            self.topic.add(binding.routing_key, binding.destination)
        else:
            self.direct.setdefault(binding.routing_key, []).append(binding)
        return True

    def unbind(
        self, is_queue: bool, destination: bytes, routing_key: bytes, arguments: bytes
    ) -> Binding | None:
        """Remove and return a binding; None if it does not exist.

        :param is_queue: True if the destination is a queue, False if it is an exchange.
        :param destination: the name of that queue or exchange.
        :param arguments: the encoded arguments of the binding.
        """
        key = (is_queue, destination, routing_key, arguments)
        binding = self.bindings.get(key)
        if binding is None or binding.destination in self.deleted_destinations:
            return None
        self.exchange_binding_count -= not is_queue
        incoming = binding.destination.incoming_bindings
        keys = incoming[self]
        del keys[routing_key, arguments]
        if not keys:
            del incoming[self]
        if self.selector is not None:
            self.selector.remove(binding)
        self._remove(key, binding)
        return binding

    def stop_routing_to(self, destination: Union[Queue, Exchange], is_queue: bool, count: int) -> None:  # noqa: UP007
        """Route nothing more to a queue or exchange that is being deleted.

        Its bindings do not count any more. `remove_dead_binding` removes each of them later.

        :param is_queue: True if the destination is a queue, False if it is an exchange.
        :param count: the number of bindings to it, at least 1.
        """
        self.deleted_destinations[destination] = count
        if not is_queue:
            self.exchange_binding_count -= count
        if self.selector is not None:
            self.selector.remove_destination(destination)

    def remove_dead_binding(
        self,
        destination: Union[Queue, Exchange],  # noqa: UP007
        is_queue: bool,
        routing_key: bytes,
        arguments: bytes,
    ) -> None:
        """Remove a binding to a deleted queue or exchange, unless one to its successor of the same name has replaced it.

        :param is_queue: True if the destination is a queue, False if it is an exchange.
        :param arguments: the encoded arguments of the binding.
        """
        key = (is_queue, destination.name, routing_key, arguments)
        binding = self.bindings.get(key)
        if binding is not None and binding.destination is destination:
            self._remove_dead(key, binding)

    def _remove_dead(self, key: tuple[bool, bytes, bytes, bytes], binding: Binding) -> None:
        left = self.deleted_destinations[binding.destination] - 1
        if left:
            self.deleted_destinations[binding.destination] = left
        else:
            del self.deleted_destinations[binding.destination]
        self._remove(key, binding)

    def _remove(self, key: tuple[bool, bytes, bytes, bytes], binding: Binding) -> None:
        """Remove a binding from all that finds bindings, except the selector."""
        del self.bindings[key]
        self.header_patterns.pop(binding, None)
        routing_key = binding.routing_key
        if self.matching_type == b"topic":
            self.topic.remove(routing_key, binding.destination)
        else:
            same_key = self.direct[routing_key]
            same_key.remove(binding)
            if not same_key:
                del self.direct[routing_key]

    def live_bindings(self) -> Iterator[Binding]:
        """Yield the bindings from this exchange, without those to queues and exchanges that are deleted.

        Bindings may be added and removed meanwhile.
        """
        for binding in list(self.bindings.values()):
            if binding.destination not in self.deleted_destinations:
                yield binding

    @property
    def binding_count(self) -> int:
        """Number of bindings from this exchange, without those to queues and exchanges that are deleted."""
        return len(self.bindings) - sum(self.deleted_destinations.values())

    def match(self, keys: list[bytes], headers: dict[str, Field]) -> list[Union[Queue, Exchange]]:  # noqa: UP007
        """Return the destinations of the bindings that match a message. The same one may be in the list twice.

        Those in `deleted_destinations` may be among them.

        :param keys: the routing key, then the keys in CC and BCC.
        :param headers: the message's decoded headers, by name. Only an exchange that matches headers uses them.
        """
        if self.matching_type == b"fanout":
            return [binding.destination for binding in self.bindings.values()]
        if self.matching_type == b"headers":
            given = {name: comparison_key(field) for name, field in headers.items()}
            return [
                binding.destination
                for binding, pattern in self.header_patterns.items()
                if pattern.matches(given)
            ]
        # A message with thousands of keys in CC may have the same one in all of them.
        distinct = keys if len(keys) == 1 else list(dict.fromkeys(keys))
        if self.matching_type == b"topic":
            return list(self.topic.match(distinct))  # type: ignore[arg-type]
        return [binding.destination for key in distinct for binding in self.direct.get(key, ())]

    @property
    def inspects_message(self) -> bool:
        """True if the exchange needs more of a message than its routing key: headers, a property, or all of it."""
        if self.matching_type == b"headers" and self.bindings:
            return True
        if self.recent_history is not None or self.delay_queue is not None or self.window is not None:
            return True
        return self.selector is not None and self.selector.inspects_message

    @property
    def has_exchange_bindings(self) -> bool:
        """True if it has bindings to other exchanges."""
        return self.exchange_binding_count > 0
