"""Registry of a broker's virtual hosts: adds, updates, limits and deletes them (https://www.rabbitmq.com/docs/vhosts).

The name of a virtual host is text in the methods here, and bytes (UTF-8) on the wire.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from warren.broker.model.broker_events import BrokerEvents
from warren.broker.model.bulk_work import BulkWork
from warren.broker.model.capture.event_stream import EventStream
from warren.broker.model.capture.life_cycle_hook import LifeCycleHook
from warren.broker.model.clock import Clock
from warren.broker.model.compat_checks import PortabilityChecks
from warren.broker.model.memory_budget import MemoryBudget
from warren.broker.model.operator_errors import ObjectAlreadyExists, ObjectNotFound, OperationRefused
from warren.broker.model.rabbitmq_versions import RABBITMQ_4_3, VersionBehaviour
from warren.broker.model.server_names import LONGEST_NAME
from warren.broker.model.vhost.declarations import Declarations
from warren.broker.model.vhost.vhost import VirtualHost
from warren.broker.model.vhost.vhost_settings import VirtualHostSettings, normalize_limit
from warren.broker.model.vhost.vhost_totals import VirtualHostTotals
from warren.broker.store.definitions.definition_rows import VirtualHostRow
from warren.broker.store.definitions.definitions_database import Definitions
from warren.broker.store.log.log import Log
from warren.wire.field_tables import Value

logger = logging.getLogger(__name__)

BULK_BACKLOG: Final = 1024 * 1024
"""Bytes waiting to be written to the log above which bulk work pauses, because clients' confirms wait behind them."""


class VirtualHosts:
    """Virtual hosts of one broker. Changes are written to the definitions database.

    An invalid change raises `OperationRefused`.
    """

    def __init__(
        self,
        clock: Clock,
        log: Log | None,
        definitions: Definitions | None,
        memory: MemoryBudget | None = None,
        compat: VersionBehaviour = RABBITMQ_4_3,
        portability: PortabilityChecks | None = None,
        make_hook: Callable[[bytes], LifeCycleHook | None] | None = None,
        timestamps: str = "",
    ) -> None:
        """:param log: the log of messages; None for a broker without a data folder.
        :param definitions: the definitions database; None for a broker without a data folder.
        :param memory: the memory budget, which pages out messages; None to page out none.
        :param compat: behaviour of the RabbitMQ version that the broker imitates.
        :param portability: checks for features that RabbitMQ lacks; by default they only log.
        :param make_hook: function that returns the hook that records the life-cycle events of a virtual host, from its
            name, or None if none are recorded; without the function, none are recorded in any virtual host.
        :param timestamps: publishes to which a timestamp is added: `missing` (those without one), `always` (all), or empty
            for none.
        """
        self._make_hook = make_hook
        self._timestamps = timestamps
        self.event_streams: dict[bytes, EventStream] = {}
        """Writers of life-cycle events, by the name (bytes) of each virtual host whose capture is on."""
        self.capture_blocked: Callable[[], bool] = lambda: False
        """Function that returns True while publishers are blocked: then no life-cycle events are written either."""
        self.declarations: dict[bytes, Declarations] = {}
        """Declarations (exchanges, queues and bindings) of each virtual host, by its name (bytes)."""
        self.on_deleted: list[Callable[[str], None]] = []
        """Functions that are called with the name of a virtual host when it is deleted.

        The virtual host is then unregistered, and its queues still exist.
        """
        self.deleted = VirtualHostTotals()
        """Counters of all virtual hosts that were deleted."""
        self.events: BrokerEvents | None = None
        """Publisher of the broker's events; None unless the event exchange is enabled. It is set before any host is made."""
        self.bulk_work = BulkWork(clock, self._log_is_behind)
        """Unfinished work on many messages, queues or bindings, of all virtual hosts."""
        self._clock = clock
        self._log = log
        self._definitions = definitions
        self._memory = memory
        self.compat = compat
        self.portability = portability or PortabilityChecks(strict=False)
        self._settings: dict[str, VirtualHostSettings] = {}
        self._deleting: dict[str, Declarations] = {}
        """Virtual hosts that are unregistered, and some of whose queues still exist, by name."""

    def __contains__(self, name: str) -> bool:
        return name in self._settings

    def all(self) -> list[VirtualHostSettings]:
        """Return the settings of all virtual hosts, ordered by name."""
        return [self._settings[name] for name in sorted(self._settings)]

    def settings(self, name: str) -> VirtualHostSettings:
        """Return the settings of a virtual host.

        :raises ObjectNotFound: if it does not exist.
        """
        found = self._settings.get(name)
        if found is None:
            raise ObjectNotFound(f"virtual host '{name}' does not exist")
        return found

    def declarations_of(self, name: str) -> Declarations:
        """Return the declarations (exchanges, queues and bindings) of a virtual host.

        :raises ObjectNotFound: if it does not exist.
        """
        self.settings(name)
        return self.declarations[name.encode()]

    def add(
        self,
        name: str,
        *,
        description: str = "",
        tags: Sequence[str] = (),
        default_queue_type: str = "",
        protected: bool = False,
        is_restored: bool = False,
    ) -> Declarations:
        """Add a virtual host with the predeclared exchanges such as `amq.direct`. Return its declarations.

        :param default_queue_type: the type of queues that are declared without `x-queue-type`; empty for `classic`.
        :param protected: True if the virtual host must not be deleted.
        :param is_restored: True for a copy of an existing one, which an earlier version may have accepted.
        :raises ObjectAlreadyExists: if it exists already.
        :raises OperationRefused: for a name that is empty or longer than 255 bytes, an unknown queue type, or a tag that is
            empty or has a comma, and while a virtual host of this name is being deleted.
        """
        if name in self._settings:
            raise ObjectAlreadyExists(f"virtual host '{name}' already exists")
        if name in self._deleting:
            raise OperationRefused(f"virtual host '{name}' is being deleted: try again later")
        if not name:
            raise OperationRefused("cannot add a virtual host with an empty name")
        size = len(name.encode("utf-8", "surrogateescape"))
        if size > LONGEST_NAME and not is_restored:
            # RabbitMQ takes it, although no client can open it.
            raise OperationRefused(
                f"the name of a virtual host should be at most {LONGEST_NAME} bytes, actually was {size}"
            )
        settings = VirtualHostSettings(name, description, tuple(tags), default_queue_type, protected)
        settings.check()
        self._store(settings)
        logger.debug("event=virtual_host.added name=%r", name)
        topology = self._make(settings)
        if self.events is not None:
            self.events.emit("vhost.created", {**_described(settings), "tracing": False})
        if (event_stream := self.event_streams.get(topology.vhost.name)) is not None:
            event_stream.stream()
        return topology

    def update(
        self,
        name: str,
        *,
        description: str | None = None,
        tags: Sequence[str] | None = None,
        default_queue_type: str | None = None,
        protected: bool | None = None,
    ) -> None:
        """Change the metadata of a virtual host. A value of None leaves a field as it is.

        :param default_queue_type: the type of queues that are declared without `x-queue-type`; empty for `classic`.
        :param protected: True if the virtual host must not be deleted.
        :raises ObjectNotFound: if it does not exist.
        :raises OperationRefused: for an unknown queue type, or a tag that is empty or has a comma.
        """
        old = self.settings(name)
        settings = VirtualHostSettings(
            name,
            old.description if description is None else description,
            old.tags if tags is None else tuple(tags),
            old.default_queue_type if default_queue_type is None else default_queue_type,
            old.protected if protected is None else protected,
            old.max_connections,
            old.max_queues,
        )
        settings.check()
        self._change(settings)

    def set_limits(self, name: str, *, max_connections: int | None, max_queues: int | None) -> None:
        """Set both limits of a virtual host: of open connections and of queues.

        None or a negative number is no limit; 0 allows nothing.

        :raises ObjectNotFound: if it does not exist.
        """
        self._change(
            replace(
                self.settings(name),
                max_connections=normalize_limit(max_connections),
                max_queues=normalize_limit(max_queues),
            )
        )

    def delete(self, name: str) -> None:
        """Delete a virtual host with its exchanges and queues, and close the connections to it.

        It is unregistered at once, and deleted from the definitions with all that is in it, by one change: a crash leaves
        all of it or nothing. Memory and log are freed in slices, as bulk work of the lane `deletion_lane(name)`, and its
        name can be used again when that is finished.

        :raises ObjectNotFound: if it does not exist.
        :raises OperationRefused: if it is protected from deletion.
        """
        if self.settings(name).protected:
            raise OperationRefused(f"virtual host '{name}' is protected from deletion: disable that first")
        del self._settings[name]
        topology = self.declarations.pop(name.encode())
        # Its channels have yet to end, and its queues to be deleted: they are counted there, too.
        self.deleted.add(topology.vhost.totals)
        topology.vhost.totals = self.deleted
        for call in self.on_deleted:
            call(name)
        if self.events is not None:
            self.events.emit("vhost.deleted", {"name": name})
        topology.vhost.dead_lettering.stop()
        topology.vhost.dead_lettering.discard_backlog()
        if self._definitions is not None:
            self._definitions.delete_virtual_host(name)
        # Nothing of it is deleted from there one by one, or added by a connection that is still being closed.
        topology.definitions = None
        self._deleting[name] = topology
        self.bulk_work.run(topology, lambda end: self._delete_slice(name, topology, end))

    def deletion_lane(self, name: str) -> object:
        """Return the lane of the bulk work that deletes a virtual host; None if none of this name is being deleted."""
        return self._deleting.get(name)

    def _delete_slice(self, name: str, topology: Declarations, end: float) -> bool:
        """Delete a part of a virtual host, until a time; return True if it is gone."""
        if not topology.clear(end):
            return False
        del self._deleting[name]
        logger.info("event=virtual_host.deleted name=%r", name)
        return True

    def restore(self, rows: Sequence[VirtualHostRow]) -> None:
        """Restore the virtual hosts in the definitions database at start, still without exchanges and queues."""
        for row in rows:
            tags = tuple(row.tags.split(",")) if row.tags else ()
            self._make(
                VirtualHostSettings(
                    row.name,
                    row.description,
                    tags,
                    row.default_queue_type,
                    row.protected,
                    row.max_connections,
                    row.max_queues,
                )
            )

    def invalidate_routes(self) -> None:
        """Discard all cached routes: permissions have changed, and channels check them again at the next publish."""
        for topology in self.declarations.values():
            topology.vhost.routing_epoch += 1

    def _log_is_behind(self) -> bool:
        """Return True while more than `BULK_BACKLOG` bytes wait to be written to the log."""
        log = self._log
        return log is not None and not log.failed and log.unwritten_bytes > BULK_BACKLOG

    def _blocked(self) -> bool:
        return self.capture_blocked()

    def _make(self, settings: VirtualHostSettings) -> Declarations:
        vhost = VirtualHost(settings.name.encode(), self._clock, self._log, self.compat, self.portability)
        vhost.memory_budget = self._memory
        vhost.timestamps = self._timestamps
        vhost.bulk_work = self.bulk_work
        vhost.events = self.events
        if self.events is not None and self.events.vhost_name == vhost.name:
            self.events.attach(vhost)
        topology = Declarations(vhost, self._definitions)
        topology.settings = settings
        vhost.capture = self._make_hook(vhost.name) if self._make_hook is not None else None
        if vhost.capture is not None and vhost.capture.stream:
            self.event_streams[vhost.name] = EventStream(topology, vhost.capture, self._blocked)
        self._settings[settings.name] = settings
        self.declarations[vhost.name] = topology
        return topology

    def _change(self, settings: VirtualHostSettings) -> None:
        self._settings[settings.name] = settings
        self.declarations[settings.name.encode()].settings = settings
        self._store(settings)

    def _store(self, settings: VirtualHostSettings) -> None:
        if self._definitions is not None:
            self._definitions.put(settings.to_row())


def _described(settings: VirtualHostSettings) -> dict[str, Value]:
    """Return the headers of an event that describe a virtual host."""
    return {
        "name": settings.name,
        "description": settings.description,
        "tags": list(settings.tags),
        "default_queue_type": settings.default_queue_type or "classic",
        "protected_from_deletion": settings.protected,
    }
