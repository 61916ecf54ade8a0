"""A virtual host: exchanges and queues by name, routing, and delivery of a message to the queues it is routed to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.model.bulk_work import BulkWork
from warren.broker.model.clock import Clock
from warren.broker.model.dead_letter.dead_lettering import DeadLettering
from warren.broker.model.deduplication import drop_duplicates, drop_late_duplicates
from warren.broker.model.exchange.delayed import DELAY_HEADER, delay_ms
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.message import Message
from warren.broker.model.message_codec import message_head
from warren.broker.model.policy.policies import Policies
from warren.broker.model.queue.paging import QueuePager
from warren.broker.model.queue.queue import ACCEPTED, REJECTED, STORED, Queue
from warren.broker.model.rabbitmq_versions import VersionBehaviour
from warren.broker.model.vhost.vhost_totals import VirtualHostTotals
from warren.wire.content import header_payload
from warren.wire.properties import decode

if TYPE_CHECKING:
    from warren.broker.model.broker_events import BrokerEvents
    from warren.broker.model.capture.life_cycle_hook import LifeCycleHook
    from warren.broker.model.compat_checks import PortabilityChecks
    from warren.broker.model.firehose import Firehose
    from warren.broker.model.memory_budget import MemoryBudget
    from warren.broker.model.vhost.declarations import Declarations
    from warren.broker.store.log.log import Log
    from warren.broker.store.log.queue_log import QueueLog
    from warren.broker.store.stream.stream_store import StreamStore
    from warren.wire.field_tables import Field

REPLY_PREFIX: Final = b"amq.rabbitmq.reply-to."
"""Prefix of the names of direct reply-to queues."""
PSEUDO_QUEUE: Final = b"amq.rabbitmq.reply-to"
"""Name of the pseudo-queue of direct reply-to, which clients consume replies from."""
ROUTES_KEPT: Final = 4096
"""Number of routing keys whose routes an exchange caches at most. A full cache is emptied."""

TRANSFERS_SIZE: Final = 8 * 1024
"""Bytes of the log's record of several transfers of messages above which the next transfer begins another one.

One damaged byte makes all messages in the record unreadable.
"""


class VirtualHost:
    """One virtual host: routes published messages and puts them into queues.

    `declarations` makes and deletes its exchanges, queues and bindings.
    """

    routing_epoch: i64 = 0
    """Number that grows with every change that may change a route. Routes cached under a lower number are invalid."""

    def __init__(
        self,
        name: bytes,
        clock: Clock,
        log: Log | None,
        compat: VersionBehaviour,
        portability: PortabilityChecks,
    ) -> None:
        self.name = name
        self.clock = clock
        self.log = log
        self.memory_budget: Optional[MemoryBudget] = None  # noqa: UP045
        """Memory budget of the messages in queues; None without a data folder, since nothing can be paged out then."""
        self.bulk_work = BulkWork(clock)
        """Unfinished work on many messages, queues or bindings; that of the whole broker, if it has several hosts."""
        self.timer_lane: object = object()
        """Lane of the bulk work of queues whose timers have fired: those of ten thousand queues may fire at once."""
        self.publish_lane: object = object()
        """Lane of the bulk work of its bulk publishes: one is finished before the next begins, so that queues are released.
        """
        self.compat = compat
        self.portability = portability
        self.exchanges: dict[bytes, Exchange] = {}
        self.queues: dict[bytes, Queue] = {}
        self.internal_queues: dict[bytes, Queue] = {}
        """Queues that no client can name, which hold delayed messages and deduplication keys, by name."""
        self.window_count = 0
        """Number of exchanges and queues that deduplicate. While it is 0, messages are not checked for duplicates."""
        self.reply_queues: dict[bytes, Queue] = {}
        """Queues of direct reply-to, by the routing key that a reply is published with."""
        self.dead_lettering = DeadLettering(self)
        self.policies = Policies(self)
        self.declarations: Declarations | None = None
        self.capture: Optional[LifeCycleHook] = None  # noqa: UP045
        """Hook that records life-cycle events; None if event capture is off."""
        self.events: Optional[BrokerEvents] = None  # noqa: UP045
        """Publisher of the broker's events; None unless the event exchange is enabled."""
        self.firehose: Optional[Firehose] = None  # noqa: UP045
        """Publisher of trace messages; None while tracing is off."""
        self.timestamps = ""
        """Publishes to which a timestamp is added: `missing` (those without one), `always` (all), or empty for none."""
        self.totals = VirtualHostTotals()
        """Counters of its channels and queues; those of all deleted virtual hosts once it is deleted itself."""
        self.streams: StreamStore | None = None
        """Store of the files of its streams; None before the first stream is declared."""

    def is_reply_key(self, routing_key: bytes) -> bool:
        """Return True if a routing key of the default exchange names a direct reply-to queue.

        Routes to such queues are not cached, because the queues come and go too often.
        """
        return routing_key.startswith(REPLY_PREFIX)

    def route(self, exchange: Exchange, routing_key: bytes) -> list[Queue]:
        """Return the queues that a message with this routing key reaches, each once.

        The list is cached: do not change it. Call this only if `routes_by_message` returns False for the exchange,
        since the route must not depend on the headers or the content of the message.
        """
        if exchange.routes_epoch != self.routing_epoch or len(exchange.routes) > ROUTES_KEPT:
            exchange.routes.clear()
            exchange.routes_epoch = int(self.routing_epoch)
        found = exchange.routes.get(routing_key)
        if found is None:
            found = self.find_queues(exchange, [routing_key], {}, None)
            exchange.routes[routing_key] = found
        return found

    def routes_by_message(self, exchange: Exchange) -> bool:
        """Return True if a message's route may depend on more than its routing key, so that it is not cached."""
        if exchange.name == b"":
            return False
        if exchange.inspects_message:
            return True
        if not exchange.has_exchange_bindings and exchange.alternate is None:
            return False
        # Any such exchange may be on the way. Finding out which keys lead there costs more than it saves.
        return any(other.inspects_message for other in self.exchanges.values())

    def deduplicates(self, queues: list[Queue]) -> bool:
        """Return True if one of these queues may drop a message as a duplicate."""
        return self.window_count > 0 and any(queue.window is not None for queue in queues)

    def find_queues(
        self, first: Exchange, keys: list[bytes], headers: dict[str, Field], message: Message | None
    ) -> list[Queue]:
        """Return the queues that a message reaches, found without the cache.

        Follow the bindings, and from an exchange without a match its alternate exchange; visit each exchange once. The
        default exchange routes to every queue by name when it is published to; as an alternate it routes nowhere, as in
        RabbitMQ. Source: https://www.rabbitmq.com/docs/ae and https://www.rabbitmq.com/docs/e2e.

        :param first: the exchange that the message is published to.
        :param keys: the routing key, then the keys in CC and BCC.
        :param headers: the message's headers, for headers exchanges.
        :param message: the message, for exchanges that need more of it, such as a property; None if no exchange does.
        """
        queues: dict[Queue, bool] = {}
        passed: list[Queue] = []
        seen_before = False
        if first.name == b"":
            for key in keys:
                queue = self.queues.get(key) or self.reply_queues.get(key)
                if queue is not None:
                    queues[queue] = True
            return (
                drop_duplicates(list(queues), passed, headers, False) if self.window_count else list(queues)
            )
        seen: dict[Exchange, bool] = {first: True}
        work = [first]
        while work:
            exchange = work.pop()
            if exchange.window is not None:
                if exchange.window.contains(headers):
                    seen_before = True
                    continue
                passed.append(exchange.window.queue)
            held = exchange.delay_queue
            if held is not None and delay_ms(headers):
                queues[held] = True
                continue
            choice = exchange.selector
            if choice is not None:
                matched = choice.select(keys[0], headers, message)
            else:
                matched = exchange.match(keys, headers)
                if exchange.recent_history is not None and message is not None:
                    exchange.recent_history.remember(message, headers)
            if exchange.deleted_destinations:
                matched = [each for each in matched if each not in exchange.deleted_destinations]
            if not matched and exchange.alternate is not None:
                alternate = self.exchanges.get(exchange.alternate)
                if alternate is not None:
                    matched = [alternate]
            for destination in matched:
                if isinstance(destination, Queue):
                    queues[destination] = True
                elif destination not in seen:
                    seen[destination] = True
                    work.append(destination)
        return (
            drop_duplicates(list(queues), passed, headers, seen_before) if self.window_count else list(queues)
        )

    def deliver(self, queues: list[Queue], message: Message) -> i64:
        """Put a message into the queues that it was routed to.

        Return ACCEPTED, STORED (to be confirmed when the log is on disk) or REJECTED. With several queues, it is
        REJECTED if any queue rejects the message, otherwise STORED if any queue stores it on disk. The other queues
        keep the message in each case.
        """
        if len(queues) == 1:
            return queues[0].publish(message)
        window_queues: list[Queue] = []
        if self.window_count:
            window_queues = [queue for queue in queues if queue.stored_window is not None]
            if window_queues:
                queues = [
                    queue for queue in drop_late_duplicates(queues, message) if queue.stored_window is None
                ]
        refused = False
        copies: list[tuple[Queue, Message]] = []
        by_expiry: dict[int, list[tuple[Queue, Message]]] = {}
        has_stream = False
        dead_lettering = self.dead_lettering
        was_deferred = dead_lettering.busy
        # A queue may dead-letter at once. Its dead letters come after the message in all other queues.
        dead_lettering.defer()
        try:
            for queue in queues:
                if queue.has_length_limit and queue.rejects_publishes and queue.limit.would_exceed(message):
                    queue.limit.reject(message)
                    refused = True
                    continue
                copy = message.copy()
                if queue.capture is not None:
                    queue.capture.enqueued(queue, copy)
                queue.assign_sequence(copy)
                copies.append((queue, copy))
                if queue.is_stream:
                    has_stream = True
                elif queue.stores(copy):
                    by_expiry.setdefault(int(copy.expires), []).append((queue, copy))
            if by_expiry:
                self.store_by_expiry(by_expiry)
            for queue, copy in copies:
                queue.accept(copy)
        finally:
            # After an error, too: otherwise no message of the virtual host would be dead-lettered any more.
            if not was_deferred:
                dead_lettering.resume()
        if refused:
            return REJECTED
        for window_queue in window_queues:
            # The key is logged after the message: a crash in between loses the key and not the message.
            assert window_queue.stored_window is not None
            entry = window_queue.stored_window.make_entry(message, queues) if queues else None
            if entry is not None:
                window_queue.publish(entry)
        return STORED if by_expiry or (has_stream and self.log is not None) else ACCEPTED

    def transfer(self, queue: Queue, message: Message, targets: list[Queue], copy: Message) -> bool:
        """Move a message to other queues. In the log, the removal and all copies are in one record.

        Return True if one of the queues rejected its copy. Call `end_transfers` after the last one: a record of the log
        may hold several of them.

        :param queue: the queue that the message leaves.
        :param copy: the message to put into `targets`.
        """
        log = self.log
        if log is None or not (message.stored or copy.persistent):
            return self.deliver(targets, copy) == REJECTED
        if not log.in_group:
            log.begin_group()
        refused = self.deliver(targets, copy) == REJECTED
        if message.stored:
            queue.remove_from_log(message)
        if log.group_size() > TRANSFERS_SIZE:
            log.end_group()
        return refused

    def end_transfers(self, queues: dict[Queue, bool]) -> None:
        """End the record of the log that holds the last transfers.

        :param queues: the queues that messages were transferred from since the last call; a dict as a set.
        """
        log = self.log
        if log is None:
            return
        if log.in_group:
            log.end_group()
        for queue in queues:
            queue.letters_batch = log.batch

    def would_route(self, first: Exchange, keys: list[bytes], headers: dict[str, Field]) -> bool:
        """Return True if a delayed message would reach a queue if its delay had ended now.

        If not, it is returned at once when it is published as mandatory.

        :param first: the delayed exchange.
        :param keys: the routing key, then the keys in CC and BCC.
        :param headers: the message's decoded headers, by name; x-delay is ignored.
        """
        without = {name: field for name, field in headers.items() if name != DELAY_HEADER}
        return bool(self.find_queues(first, keys, without, None))

    def all_queues(self) -> list[Queue]:
        """Return all queues: those of clients and the internal ones."""
        return [*self.queues.values(), *self.internal_queues.values()]

    def store_by_expiry(self, copies: dict[int, list[tuple[Queue, Message]]]) -> None:
        """Write the copies of a message to the log as a whole: after a crash, all queues have it or none.

        The log has its content once for each time of expiry.

        :param copies: the queues with their copies, by the time of expiry; at least one.
        """
        log = self.log
        assert log is not None
        grouped = len(copies) > 1 and not log.in_group
        if grouped:
            log.begin_group()
        try:
            for stored in copies.values():
                self.store_fan_out(stored)
        finally:
            # After an error, too: a group that stays open holds back all later records of the log.
            if grouped:
                log.end_group()

    def store_fan_out(self, copies: list[tuple[Queue, Message]]) -> None:
        """Write the copies of a message for several queues to the log as one record, which holds the content once.

        :param copies: the queues, each with its copy of the message.
        """
        if len(copies) == 1:
            queue, copy = copies[0]
            queue.store(copy)
            return
        log = self.log
        assert log is not None
        head = message_head(copies[0][1])
        targets: list[tuple[QueueLog, int]] = []
        for queue, copy in copies:
            records = queue.queue_log
            assert records is not None
            targets.append((records, int(copy.sequence)))
            copy.stored = True
        place = log.fan_out(targets, head, copies[0][1].content)
        for _, copy in copies:
            copy.log_position = place

    def track_memory(self, queue: Queue) -> None:
        """Add a queue with ready messages to those that the memory budget counts and pages out when memory is short."""
        queue.memory_tracked = True
        memory = self.memory_budget
        if memory is None:
            return
        if queue.pager is None and self.log is not None:
            queue.attach_pager(QueuePager(self.log, None, queue.name))
        memory.track(queue)

    def replay_history(self, exchange: Exchange, destination: Queue | Exchange) -> None:
        """Put the messages that an `x-recent-history` exchange keeps into a destination that was just bound to it."""
        if exchange.recent_history is None:
            return
        for message in exchange.recent_history.messages():
            queues = [destination] if isinstance(destination, Queue) else []
            if isinstance(destination, Exchange):
                headers = decode(header_payload(message.content)).headers
                queues = self.find_queues(destination, [message.routing_key], headers, message)
            if queues:
                self.deliver(queues, message)

    def remove_queue(self, queue: Queue) -> None:
        """Delete a queue because of x-expires or auto-delete."""
        topology = self.declarations
        assert topology is not None
        topology.delete_queue(queue)
