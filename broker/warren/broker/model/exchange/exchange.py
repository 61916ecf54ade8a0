"""Exchanges: from a routing key to the destinations that are bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from warren.broker.model.exchange.headers import HeadersPattern
from warren.broker.model.exchange.topic import TopicTrie

if TYPE_CHECKING:
    from warren.broker.model.deduplication import DeduplicationWindow
    from warren.broker.model.exchange.binding_selector import BindingSelector
    from warren.broker.model.exchange.recent_history import RecentHistory
    from warren.broker.model.queue.queue import Queue
    from warren.wire.field_tables import Field

TYPES = (b"direct", b"fanout", b"topic", b"headers")


class Binding:
    """One binding; it is identified by source, destination, key and arguments together."""

    def __init__(self, destination: Union[Queue, Exchange], routing_key: bytes, arguments: bytes) -> None:  # noqa: UP007
        self.destination = destination
        self.routing_key = routing_key
        self.arguments = arguments

    @property
    def durable(self) -> bool:
        return self.destination.durable

    def queue_type(self) -> str:
        """The type of the queue that it leads to; empty if that is an exchange."""
        destination = self.destination
        return "" if isinstance(destination, Exchange) else destination.arguments.type_name


class Exchange:
    """A named exchange and the bindings from it.

    The key of `bindings` is (destination is a queue, destination's name, routing key, encoded arguments): declaring one
    twice makes one.
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
        self.matching_type = kind
        """direct, fanout, topic or headers: how it compares its bindings with a message."""
        self.selector: BindingSelector | None = None
        """How it chooses one of its bindings, if it does not compare."""
        self.is_delayed = False
        """Its messages may say for how long they are held back."""
        self.window: DeduplicationWindow | None = None
        """The keys that it has seen, if it deduplicates."""
        self.delay_queue: Queue | None = None
        """What it holds back until it is due, if its messages may be delayed."""
        self.recent_history: RecentHistory | None = None
        """What a queue gets that is bound to it, if it remembers."""
        self.bindings: dict[tuple[bool, bytes, bytes, bytes], Binding] = {}
        self.incoming_bindings: dict[tuple[bytes, bytes, bytes], bool] = {}
        """The bindings to this one: (source, routing key, encoded arguments)."""
        self.direct: dict[bytes, list[Binding]] = {}
        self.topic = TopicTrie()
        self.header_patterns: dict[Binding, HeadersPattern] = {}
        self.routes: dict[bytes, list[Queue]] = {}
        """The queues that a key leads to in the end, as found by the virtual host; valid while its epoch stands."""
        self.routes_epoch = -1
        self.exchange_binding_count = 0
        """How many of its bindings lead to another exchange."""
        self.unroutable_dropped = 0
        self.unroutable_returned = 0

    def bind(self, binding: Binding, is_queue: bool) -> bool:
        """Add a binding. False if it is there already.

        :raises AmqpError: 406 if this is a headers exchange and the binding's x-match is none, or if its type has no such
            bindings.
        """
        key = (is_queue, binding.destination.name, binding.routing_key, binding.arguments)
        if key in self.bindings:
            return False
        if self.selector is not None:
            self.selector.add(binding)
        if self.matching_type == b"headers":
            self.header_patterns[binding] = HeadersPattern(binding.arguments)
        self.bindings[key] = binding
        self.exchange_binding_count += not is_queue
        binding.destination.incoming_bindings[self.name, binding.routing_key, binding.arguments] = True
        if self.matching_type == b"topic":
            self.topic.add(binding.routing_key, binding.destination)
        else:
            self.direct.setdefault(binding.routing_key, []).append(binding)
        return True

    def unbind(
        self, is_queue: bool, destination: bytes, routing_key: bytes, arguments: bytes
    ) -> Binding | None:
        """Take a binding away and return it; None if there is none."""
        binding = self.bindings.pop((is_queue, destination, routing_key, arguments), None)
        if binding is None:
            return None
        self.exchange_binding_count -= not is_queue
        del binding.destination.incoming_bindings[self.name, routing_key, arguments]
        self.header_patterns.pop(binding, None)
        if self.selector is not None:
            self.selector.remove(binding)
        if self.matching_type == b"topic":
            self.topic.remove(routing_key, binding.destination)
        else:
            same_key = self.direct[routing_key]
            same_key.remove(binding)
            if not same_key:
                del self.direct[routing_key]
        return binding

    def match(self, routing_key: bytes, headers: dict[str, Field]) -> list[Union[Queue, Exchange]]:  # noqa: UP007
        """Where a message with this key goes next; a destination may come twice, the caller takes it once."""
        if self.matching_type == b"topic":
            return list(self.topic.match(routing_key))  # type: ignore[arg-type]
        if self.matching_type == b"fanout":
            return [binding.destination for binding in self.bindings.values()]
        if self.matching_type == b"headers":
            return [
                binding.destination
                for binding, pattern in self.header_patterns.items()
                if pattern.matches(headers)
            ]
        return [binding.destination for binding in self.direct.get(routing_key, ())]

    @property
    def inspects_message(self) -> bool:
        """More than the routing key decides where a message goes from here, or what else is done with it."""
        if self.matching_type == b"headers" or self.recent_history is not None:
            return True
        if self.delay_queue is not None or self.window is not None:
            return True
        return self.selector is not None and self.selector.inspects_message

    @property
    def has_exchange_bindings(self) -> bool:
        """An exchange is bound to this one."""
        return self.exchange_binding_count > 0
