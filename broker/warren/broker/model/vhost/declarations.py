"""Declaration, binding and deletion of a virtual host's exchanges and queues.

Rules and texts are RabbitMQ's (rabbit_amqqueue, rabbit_exchange, rabbit_binding; https://www.rabbitmq.com/docs/queues).
Errors are raised without class and method id of the failed method; the channel adds them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

from warren.broker.model.argument_checks import argument_fields, sorted_arguments
from warren.broker.model.broker_events import text
from warren.broker.model.exchange.exchange import TYPES, Binding, Exchange
from warren.broker.model.exchange.exchange_types import (
    EXCHANGE_EQUIVALENCE_ARGUMENTS,
    check_alternate,
    check_type,
    exchange_deduplication_rule,
    make_exchange,
)
from warren.broker.model.internal_queues import InternalQueues, split_rows
from warren.broker.model.queue.paging import QueuePager
from warren.broker.model.queue.queue import Queue
from warren.broker.model.queue.queue_arguments import (
    DEAD_LETTER_KEY,
    EQUIVALENCE_ARGUMENTS,
    QueueArguments,
    check_equivalence,
    queue_arguments,
    queue_type,
    refuse_transient,
)
from warren.broker.model.server_names import (
    EVENT_EXCHANGE,
    LONGEST_NAME,
    TRACE_EXCHANGE,
    generate_name,
    generated_name_prefix,
    refuse_default_exchange,
)
from warren.broker.model.stream.stream import Stream
from warren.broker.model.stream.stream_arguments import STREAM_EQUIVALENCE_ARGUMENTS, refuse_sizes
from warren.broker.model.vhost.binding_removal import BindingRemoval
from warren.broker.model.vhost.vhost import VirtualHost
from warren.broker.model.vhost.vhost_settings import VirtualHostSettings
from warren.broker.store.definitions.definitions_database import (
    BindingRow,
    Definitions,
    ExchangeRow,
    QueueRow,
)
from warren.broker.store.stream.stream_store import StreamStore
from warren.wire.field_tables import Value, sort_fields
from warren.wire.reply_codes import AmqpError, Reply

logger = logging.getLogger(__name__)


class Declarations:
    """Declaration, binding, deletion, and restoration at start, of one virtual host's exchanges and queues."""

    def __init__(self, vhost: VirtualHost, definitions: Definitions | None) -> None:
        self.vhost = vhost
        self.definitions = definitions
        """Definitions database; None without a data folder, and once the virtual host is deleted from there."""
        self.settings = VirtualHostSettings(vhost.name.decode(errors="replace"))
        self._incarnations = 0
        self.internal_queues = InternalQueues(self)
        self._exclusive_queues: dict[object, dict[Queue, bool]] = {}
        """Exclusive queues by the connection that owns them. The inner dict serves as an ordered set."""
        vhost.declarations = self
        vhost.exchanges[b""] = Exchange(b"", b"direct", True, False, False, b"")
        for kind in TYPES:
            name = b"amq." + kind
            vhost.exchanges[name] = Exchange(name, kind, True, False, False, b"")
        vhost.exchanges[TRACE_EXCHANGE] = Exchange(TRACE_EXCHANGE, b"topic", True, False, True, b"")
        vhost.exchanges[b"amq.match"] = Exchange(b"amq.match", b"headers", True, False, False, b"")

    def _emit(self, key: str, fields: dict[str, Value]) -> None:
        """Publish an event about an object of the virtual host, if the event exchange is enabled."""
        if self.vhost.events is not None:
            self.vhost.events.emit(key, {**fields, "vhost": text(self.vhost.name)})

    # -- names

    def describe(self, kind: str, name: bytes) -> str:
        """Return the description of a queue or an exchange for error texts, such as `queue 'q' in vhost '/'`.

        :param kind: `queue` or `exchange`.
        """
        vhost = self.vhost.name.decode(errors="replace")
        return f"{kind} '{name.decode(errors='replace')}' in vhost '{vhost}'"

    def queue(self, name: bytes, owner: object) -> Queue:
        """Return a queue by name.

        :param owner: the connection that uses it, which decides on access to an exclusive queue.
        :raises AmqpError: 404 if it does not exist, 405 if it is exclusive to another connection.
        """
        queue = self.vhost.queues.get(name)
        if queue is None:
            host = self.vhost.name.decode(errors="replace")
            raise AmqpError(Reply.NOT_FOUND, f"no queue '{name.decode(errors='replace')}' in vhost '{host}'")
        if queue.owner is not None and queue.owner is not owner:
            raise self._locked(name)
        return queue

    def exchange(self, name: bytes) -> Exchange:
        """Return an exchange by name.

        :raises AmqpError: 404 if it does not exist.
        """
        exchange = self.vhost.exchanges.get(name)
        if exchange is None:
            raise AmqpError(Reply.NOT_FOUND, f"no {self.describe('exchange', name)}")
        return exchange

    def _locked(self, name: bytes) -> AmqpError:
        return AmqpError(
            Reply.RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked {self.describe('queue', name)}. It could be originally declared "
            "on another connection or the exclusive property value does not match that of the original declaration.",
        )

    # -- queues

    def declare_queue(
        self,
        name: bytes,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        raw: bytes,
        owner: object,
        *,
        generated: bytes = b"",
        is_restored: bool = False,
    ) -> Queue:
        """Carry out a queue.declare: return the queue, which is made if it does not exist.

        :param durable: True for a durable queue; ignored for an exclusive one, which is never durable.
        :param raw: the encoded arguments.
        :param owner: the connection that declares it.
        :param generated: the name to use if `name` is empty; by default a generated one.
        :param is_restored: True for a copy of an existing queue, which an earlier version may have accepted.
        :raises AmqpError: 403 for a reserved name, 405 if it is exclusive to another connection, 406 if it exists with
            other properties or an argument is invalid, 502 for malformed arguments.
        """
        # An exclusive queue is deleted with its connection, so that it is never durable.
        durable = durable and not exclusive
        self.refuse_reserved(name)
        existing = self.vhost.queues.get(name) if name else None
        if existing is not None:
            self._assert_same_queue(existing, durable, exclusive, auto_delete, raw, owner)
            existing.expiry.touch()
            self.vhost.totals.queues_declared += 1
            return existing
        arguments = queue_arguments(
            raw,
            self.describe("queue", name),
            takes_any_retries=self.vhost.portability.strict or is_restored,
            is_restored=is_restored,
        )
        if arguments.quorum or arguments.stream:
            refuse_transient(arguments, name, self.describe("queue", name), durable, exclusive, auto_delete)
            if not is_restored:
                refuse_sizes(arguments)
        portability = self.vhost.portability
        portability.check_queue(self.describe("queue", name), durable, exclusive, raw, arguments)
        if not name:
            name = generated or generate_name(generated_name_prefix(raw))
        stored = durable and self.definitions is not None
        queue = self._make_queue(
            name,
            durable,
            auto_delete,
            owner if exclusive else None,
            raw,
            arguments,
            self.new_incarnation(stored),
            stored,
        )
        if stored:
            assert self.definitions is not None
            self.definitions.put(QueueRow(self.vhost.name, name, int(queue.incarnation), auto_delete, raw))
        if exclusive:
            self._exclusive_queues.setdefault(owner, {})[queue] = True
        queue.expiry.touch()
        self.vhost.totals.queues_declared += 1
        self.vhost.totals.queues_created += 1
        self._emit(
            "queue.created",
            {
                "name": text(name),
                "durable": durable,
                "auto_delete": auto_delete,
                "exclusive": exclusive,
                "type": f"rabbit_{arguments.type_name}_queue",
            },
        )
        return queue

    def _make_queue(
        self,
        name: bytes,
        durable: bool,
        auto_delete: bool,
        owner: object | None,
        raw: bytes,
        arguments: QueueArguments,
        incarnation: int,
        stored: bool,
    ) -> Queue:
        if arguments.stream:
            queue: Queue = Stream(self.vhost, name, raw, arguments, incarnation, self._streams())
        else:
            queue = Queue(self.vhost, name, durable, auto_delete, owner, raw, arguments, incarnation)
        if stored and self.vhost.log is not None:
            if not arguments.stream:
                queue.log = self.vhost.log
            queue.queue_log = self.vhost.log.queue(incarnation)
            queue.attach_pager(QueuePager(self.vhost.log, queue.queue_log, name))
        capture = self.vhost.capture
        if capture is not None and capture.stream != name:
            queue.capture = capture
        self.internal_queues.add_for_queue(queue)
        self.vhost.policies.apply_to_queue(queue)
        self.vhost.queues[name] = queue
        self.vhost.routing_epoch += 1
        return queue

    def _streams(self) -> StreamStore:
        vhost = self.vhost
        if vhost.streams is None:
            on_disk = vhost.log.streams if vhost.log is not None else None
            vhost.streams = on_disk or StreamStore(asyncio.get_running_loop())
        return vhost.streams

    def new_incarnation(self, stored: bool) -> int:
        """Return a new number for a queue, which no other queue of this broker has or had.

        The log identifies the queue by it instead of its name, since a queue of the same name may be declared again
        later.

        :param stored: True if the queue is durable, so that the number has to stay unique over restarts.
        """
        if stored:
            assert self.definitions is not None
            return self.definitions.new_incarnation()
        # A negative number differs from all numbers that are stored.
        self._incarnations -= 1
        return self._incarnations

    def _assert_same_queue(
        self, queue: Queue, durable: bool, exclusive: bool, auto_delete: bool, raw: bytes, owner: object
    ) -> None:
        if queue.owner is not (owner if exclusive else None):
            raise self._locked(queue.name)
        described = self.describe("queue", queue.name)
        _assert_flag("durable", durable, queue.durable, described)
        _assert_flag("auto_delete", auto_delete, queue.auto_delete, described)
        known = EQUIVALENCE_ARGUMENTS[queue.declared_arguments.quorum]
        if isinstance(queue, Stream):
            known = STREAM_EQUIVALENCE_ARGUMENTS
        received, current = queue_type(raw), queue.declared_arguments.type_name
        if received != current and self.vhost.compat.names_both_queue_types:
            raise AmqpError(
                Reply.PRECONDITION_FAILED,
                f"inequivalent arg 'x-queue-type' for {described}: received '{received}' but current is '{current}'",
            )
        check_equivalence(raw, queue.raw_arguments, known, described)

    def delete_queue(self, queue: Queue) -> int:
        """Delete a queue with its messages and bindings. Return the number of messages that were ready.

        The deletion is not on disk before the dead letters that it has had so far. Those that wait to be published are
        not among them: the caller waits until they are (`Queue.when_settled`).
        """
        if queue.deleted:
            return 0
        count = int(queue.ready.count)
        self.vhost.totals.queues_deleted += 1
        self.vhost.totals.add_deleted_queue(queue.declared_arguments.type_name, queue.message_counts())
        del self.vhost.queues[queue.name]
        kind = f"rabbit_{queue.declared_arguments.type_name}_queue"
        self._emit("queue.deleted", {"name": text(queue.name), "type": kind})
        if queue.owner is not None:
            owned = self._exclusive_queues[queue.owner]
            del owned[queue]
            if not owned:
                del self._exclusive_queues[queue.owner]
        unused = self._remove_bindings(queue)
        self.internal_queues.remove_for(queue)
        queue.mark_deleted()
        log, definitions = self.vhost.log, self.definitions
        if definitions is not None and queue.queue_log is not None:
            assert log is not None
            definitions.require_batch(int(log.unwritten_batch(queue.letters_batch)))
            definitions.delete_queue(self.vhost.name, queue.name, unused)
        elif definitions is not None and unused:
            definitions.delete_exchanges(self.vhost.name, unused)
        if queue.queue_log is not None:
            assert log is not None
            log.drop_queue(queue.queue_log)
        if isinstance(queue, Stream):
            queue.delete_files()
        return count

    def refuse_reserved(self, name: bytes) -> None:
        """Refuse to declare a queue with a reserved name.

        :raises AmqpError: 403 if the name begins with `amq.`, also if the server has generated it.
        """
        if name.startswith(b"amq."):
            raise AmqpError(
                Reply.ACCESS_REFUSED,
                f"queue name '{name.decode(errors='replace')}' contains reserved prefix 'amq.*'",
            )

    def delete_exclusive_queues(self, owner: object, end: float) -> bool:
        """Delete exclusive queues of a connection that ends, until a time; return True if none is left.

        :param end: the time by `time.monotonic()`.
        """
        for queue in list(self._exclusive_queues.get(owner, ())):
            self.delete_queue(queue)
            if time.monotonic() >= end:
                break
        return owner not in self._exclusive_queues

    # -- exchanges

    def declare_exchange(
        self,
        name: bytes,
        kind: bytes,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        raw: bytes,
        *,
        is_restored: bool = False,
    ) -> Exchange:
        """Carry out an exchange.declare: return the exchange, which is made if it does not exist.

        :param kind: the exchange type.
        :param internal: True if only other exchanges, no clients, may publish to it.
        :param raw: the encoded arguments.
        :param is_restored: True for a copy of an existing exchange, which an earlier version may have accepted.
        :raises AmqpError: 403 for a reserved name, 406 (503 before 4.0) for an unknown type, 406 if it exists with
            other properties or an argument is invalid, 502 for malformed arguments.
        """
        check_type(kind, raw, self.vhost.compat)
        refuse_default_exchange(name)
        existing = self.vhost.exchanges.get(name)
        if existing is not None:
            described = self.describe("exchange", name)
            if existing.kind != kind:
                raise AmqpError(
                    Reply.PRECONDITION_FAILED,
                    f"inequivalent arg 'type' for {described}: received '{kind.decode()}' but current is "
                    f"'{existing.kind.decode()}'",
                )
            _assert_flag("durable", durable, existing.durable, described)
            _assert_flag("auto_delete", auto_delete, existing.auto_delete, described)
            _assert_flag("internal", internal, existing.internal, described)
            check_equivalence(raw, existing.arguments, EXCHANGE_EQUIVALENCE_ARGUMENTS, described)
            return existing
        if name.startswith(b"amq."):
            raise AmqpError(
                Reply.ACCESS_REFUSED,
                f"exchange name '{name.decode(errors='replace')}' contains reserved prefix 'amq.*'",
            )
        self.vhost.portability.check_exchange(kind, raw)
        if not is_restored:
            check_alternate(raw, self.describe("exchange", name))
        exchange = self._make_exchange(name, kind, durable, auto_delete, internal, raw)
        if durable and self.definitions is not None:
            self.definitions.put(ExchangeRow(self.vhost.name, name, kind, auto_delete, internal, raw))
        self._emit(
            "exchange.created",
            {
                "name": text(name),
                "type": text(kind),
                "durable": durable,
                "auto_delete": auto_delete,
                "internal": internal,
                "policy": "",
            },
        )
        return exchange

    def _make_exchange(
        self, name: bytes, kind: bytes, durable: bool, auto_delete: bool, internal: bool, raw: bytes
    ) -> Exchange:
        described = self.describe("exchange", name)
        exchange = make_exchange(name, kind, durable, auto_delete, internal, raw)
        self.vhost.policies.apply_to_exchange(exchange)
        self.internal_queues.add_for_exchange(exchange, exchange_deduplication_rule(exchange, described))
        self.vhost.exchanges[name] = exchange
        self.vhost.routing_epoch += 1
        return exchange

    def delete_exchange(self, name: bytes, if_unused: bool) -> None:
        """Delete an exchange with the bindings from it and to it. A missing exchange is no error.

        :raises AmqpError: 403 for a predeclared exchange, 406 if `if_unused` is set and it has bindings.
        """
        refuse_default_exchange(name)
        if name.startswith(b"amq."):
            raise AmqpError(
                Reply.ACCESS_REFUSED, f"deletion of system {self.describe('exchange', name)} not allowed"
            )
        exchange = self.vhost.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.binding_count:
            raise AmqpError(Reply.PRECONDITION_FAILED, f"{self.describe('exchange', name)} in use")
        self._remove_exchange(exchange)

    def _remove_exchange(self, exchange: Exchange) -> None:
        del self.vhost.exchanges[exchange.name]
        stored = self._remove_bindings(exchange)
        if stored and self.definitions is not None:
            self.definitions.delete_exchanges(self.vhost.name, stored)

    def _remove_bindings(self, first: Queue | Exchange) -> list[bytes]:
        """Remove the bindings from and to a queue or exchange that is being deleted.

        Auto-delete exchanges that lose their last binding by this are deleted as well. Return the names of the exchanges
        to delete from the definitions, `first` included.
        """
        self.vhost.routing_epoch += 1
        removal = BindingRemoval()
        stored = list[bytes]()
        deleted = [first]
        while deleted:
            each = deleted.pop()
            if isinstance(each, Exchange):
                self.internal_queues.remove_for(each)
                self._emit("exchange.deleted", {"name": text(each.name)})
                removal.add_outgoing(each)
                if each.durable:
                    stored.append(each.name)
            for source in removal.detach(each):
                if source.auto_delete and not source.binding_count and self._exists(source):
                    del self.vhost.exchanges[source.name]
                    deleted.append(source)
        self.vhost.bulk_work.run(first, removal.step)
        return stored

    def _exists(self, exchange: Exchange) -> bool:
        """Return True unless an exchange is deleted; another of the same name may exist then."""
        return self.vhost.exchanges.get(exchange.name) is exchange

    def _unused_exchange(self, exchange: Exchange) -> None:
        """Delete an exchange if it is auto-delete and has no bindings left."""
        if exchange.auto_delete and not exchange.binding_count and self._exists(exchange):
            self._remove_exchange(exchange)

    # -- bindings

    def bind(self, exchange: Exchange, destination: Queue | Exchange, routing_key: bytes, raw: bytes) -> None:
        """Bind a queue or exchange to an exchange, and store the binding if both are durable. It may exist already.

        :param raw: the encoded arguments of the binding, whose order does not matter.
        :raises AmqpError: 502 for malformed arguments, 406 if the exchange type does not allow the binding.
        """
        raw = sorted_arguments(raw)
        is_queue = isinstance(destination, Queue)
        if not exchange.bind(Binding(destination, routing_key, raw), is_queue):
            return
        self.vhost.routing_epoch += 1
        self.vhost.replay_history(exchange, destination)
        self._emit("binding.created", _described_binding(exchange, destination, routing_key))
        row = self._binding_row(exchange, destination, is_queue, routing_key, raw)
        if row is not None:
            assert self.definitions is not None
            self.definitions.put(row)
        elif exchange.durable != destination.durable and self.definitions is not None:
            logger.warning(
                "event=binding.left_transient source=%r destination=%r",
                exchange.name.decode(errors="replace"),
                destination.name.decode(errors="replace"),
            )

    def unbind(
        self, source: bytes, destination: Queue | Exchange | None, routing_key: bytes, raw: bytes
    ) -> None:
        """Remove a binding. It is no error if the binding, the exchange or the queue does not exist.

        :param source: the name of the exchange.
        :param destination: the bound queue or exchange; None if it does not exist.
        :param raw: the encoded arguments of the binding, whose order does not matter.
        :raises AmqpError: 502 for malformed arguments.
        """
        raw = sorted_arguments(raw)
        exchange = self.vhost.exchanges.get(source)
        if exchange is None or destination is None:
            return
        is_queue = isinstance(destination, Queue)
        if exchange.unbind(is_queue, destination.name, routing_key, raw) is None:
            return
        self.vhost.routing_epoch += 1
        self._emit("binding.deleted", _described_binding(exchange, destination, routing_key))
        row = self._binding_row(exchange, destination, is_queue, routing_key, raw)
        if row is not None:
            assert self.definitions is not None
            self.definitions.delete_binding(row)
        self._unused_exchange(exchange)

    def _binding_row(
        self, source: Exchange, destination: Queue | Exchange, is_queue: bool, routing_key: bytes, raw: bytes
    ) -> BindingRow | None:
        """Return the database row of a binding; None for one that is not stored.

        A binding is stored if its source and destination are durable and the destination is no exclusive queue.

        :param is_queue: True if the destination is a queue, False if it is an exchange.
        :param raw: the encoded arguments of the binding.
        """
        is_durable = source.durable and destination.durable
        if isinstance(destination, Queue):
            is_durable = is_durable and destination.owner is None
        if not is_durable or self.definitions is None:
            return None
        return BindingRow(self.vhost.name, source.name, destination.name, not is_queue, routing_key, raw)

    def clear(self, end: float) -> bool:
        """Delete exchanges, then queues, until a time, because the virtual host is deleted; return True if none is left.

        Queues that are bound to nothing any more take least time.

        :param end: the time by `time.monotonic()`.
        """
        queues, exchanges = self.vhost.queues, self.vhost.exchanges
        while exchanges:
            self._remove_exchange(next(iter(exchanges.values())))
            if time.monotonic() >= end:
                return False
        while queues:
            self.delete_queue(next(iter(queues.values())))
            if time.monotonic() >= end:
                break
        return not queues

    # -- recovery

    def restore(
        self, exchanges: list[ExchangeRow], queues: list[QueueRow], bindings: list[BindingRow]
    ) -> dict[int, Queue]:
        """Restore the exchanges, queues and bindings that the definitions database holds, at start.

        Return the queues by incarnation, the number by which the log names them, so that their messages can be restored
        next.
        """
        queues, self.internal_queues.stored = split_rows(queues)
        restored = {}
        for exchange in exchanges:
            self._make_exchange(
                exchange.name,
                exchange.type,
                True,
                exchange.auto_delete,
                exchange.internal,
                exchange.arguments,
            )
        for row in queues:
            # It may have been declared while the checks were strict.
            arguments = queue_arguments(
                row.arguments, self.describe("queue", row.name), takes_any_retries=True, is_restored=True
            )
            if arguments.dead_letter_routing_key is None and DEAD_LETTER_KEY in argument_fields(
                row.arguments
            ):
                logger.warning(
                    "event=queue.argument_ignored queue=%r argument=%s reason=%r",
                    self.describe("queue", row.name),
                    DEAD_LETTER_KEY,
                    f"it is longer than {LONGEST_NAME} bytes",
                )
            restored[row.incarnation] = self._make_queue(
                row.name, True, row.auto_delete, None, row.arguments, arguments, row.incarnation, True
            )
        for binding in bindings:
            if binding.source == EVENT_EXCHANGE and binding.source not in self.vhost.exchanges:
                # The event exchange was enabled when the binding was made; it is kept until that is so again.
                continue
            table = self.vhost.exchanges if binding.to_exchange else self.vhost.queues
            destination = table[binding.destination]
            in_order = sort_fields(binding.arguments)
            self.vhost.exchanges[binding.source].bind(
                Binding(destination, binding.routing_key, in_order), not binding.to_exchange
            )
            if in_order != binding.arguments and self.definitions is not None:
                # An earlier version has stored them as the client sent them, maybe the same binding in several orders.
                self.definitions.put(replace(binding, arguments=in_order))
                self.definitions.delete_binding(binding)
        self.internal_queues.delete_orphans()
        for hidden in self.vhost.internal_queues.values():
            restored[int(hidden.incarnation)] = hidden
        self.vhost.routing_epoch += 1
        return restored


def _described_binding(
    source: Exchange, destination: Queue | Exchange, routing_key: bytes
) -> dict[str, Value]:
    """Return the headers of an event that describe a binding."""
    return {
        "source_name": text(source.name),
        "source_kind": "exchange",
        "destination_name": text(destination.name),
        "destination_kind": "queue" if isinstance(destination, Queue) else "exchange",
        "routing_key": text(routing_key),
    }


def _assert_flag(name: str, received: bool, current: bool, described: str) -> None:
    if received != current:
        raise AmqpError(
            Reply.PRECONDITION_FAILED,
            f"inequivalent arg '{name}' for {described}: received '{str(received).lower()}' but current is "
            f"'{str(current).lower()}'",
        )
