"""The broker's virtual hosts: made, described, limited and deleted while it runs.

https://www.rabbitmq.com/docs/vhosts. Their names are text here and UTF-8 on the wire.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from warren.broker.model.capture.event_stream import EventStream
from warren.broker.model.capture.life_cycle_hook import LifeCycleHook
from warren.broker.model.clock import Clock
from warren.broker.model.compat_checks import PortabilityChecks
from warren.broker.model.memory_budget import MemoryBudget
from warren.broker.model.operator_errors import ObjectAlreadyExists, ObjectNotFound, OperationRefused
from warren.broker.model.rabbitmq_versions import BEHAVIOUR_BY_VERSION, VersionBehaviour
from warren.broker.model.vhost.declarations import Declarations
from warren.broker.model.vhost.vhost import VirtualHost
from warren.broker.model.vhost.vhost_settings import VirtualHostSettings, normalize_limit
from warren.broker.store.definitions.definition_rows import VirtualHostRow
from warren.broker.store.definitions.definitions_database import Definitions
from warren.broker.store.log.log import Log

logger = logging.getLogger(__name__)


class VirtualHosts:
    """The virtual hosts of one broker. Every change is stored; it raises `OperationRefused` where it cannot be made."""

    def __init__(
        self,
        clock: Clock,
        log: Log | None,
        definitions: Definitions | None,
        memory: MemoryBudget | None = None,
        compat: VersionBehaviour = BEHAVIOUR_BY_VERSION["4"],
        portability: PortabilityChecks | None = None,
        captures: Mapping[bytes, LifeCycleHook] = MappingProxyType({}),
    ) -> None:
        """:param captures: who is told what happens in the virtual hosts of these names."""
        self._captures = captures
        self.event_streams: dict[bytes, EventStream] = {}
        """Where events go that are captured, by the virtual host's name."""
        self.capture_blocked: Callable[[], bool] = lambda: False
        """Whether no more events may be written, as publishers may not write either."""
        self.declarations: dict[bytes, Declarations] = {}
        """By the name on the wire."""
        self.on_deleted: list[Callable[[str], None]] = []
        """Called before a virtual host's queues and exchanges go, when nobody can find it any more."""
        self._clock = clock
        self._log = log
        self._definitions = definitions
        self._memory = memory
        self.compat = compat
        self.portability = portability or PortabilityChecks(strict=False)
        self._settings: dict[str, VirtualHostSettings] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._settings

    def all(self) -> list[VirtualHostSettings]:
        """All of them, by name."""
        return [self._settings[name] for name in sorted(self._settings)]

    def settings(self, name: str) -> VirtualHostSettings:
        """
        :raises ObjectNotFound: if there is none of that name.
        """
        found = self._settings.get(name)
        if found is None:
            raise ObjectNotFound(f"virtual host '{name}' does not exist")
        return found

    def declarations_of(self, name: str) -> Declarations:
        """
        :raises ObjectNotFound: if there is none of that name.
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
    ) -> Declarations:
        """Make one, with the predeclared exchanges in it.

        :raises ObjectAlreadyExists: if there is one of that name.
        """
        if name in self._settings:
            raise ObjectAlreadyExists(f"virtual host '{name}' already exists")
        if not name:
            raise OperationRefused("a virtual host needs a name")
        settings = VirtualHostSettings(name, description, tuple(tags), default_queue_type, protected)
        settings.check()
        self._store(settings)
        logger.debug("event=virtual_host_added name=%r", name)
        topology = self._make(settings)
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
        """Change what is said of one; what is not given stays."""
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
        """Set both limits; None, as any negative number, is no limit, and 0 allows nothing."""
        self._change(
            replace(
                self.settings(name),
                max_connections=normalize_limit(max_connections),
                max_queues=normalize_limit(max_queues),
            )
        )

    def delete(self, name: str) -> None:
        """Delete one with all that is in it; connections to it are closed.

        :raises OperationRefused: if it is protected from deletion.
        """
        if self.settings(name).protected:
            raise OperationRefused(f"virtual host '{name}' is protected from deletion: disable that first")
        del self._settings[name]
        topology = self.declarations.pop(name.encode())
        for told in self.on_deleted:
            told(name)
        topology.clear()
        if self._definitions is not None:
            self._definitions.delete_virtual_host(name)
        logger.info("event=virtual_host_deleted name=%r", name)

    def restore(self, rows: Sequence[VirtualHostRow]) -> None:
        """Make again what was stored, without storing it."""
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
        """What may be published where has changed: no remembered route stands."""
        for topology in self.declarations.values():
            topology.vhost.routing_epoch += 1

    def _blocked(self) -> bool:
        return self.capture_blocked()

    def _make(self, settings: VirtualHostSettings) -> Declarations:
        vhost = VirtualHost(settings.name.encode(), self._clock, self._log, self.compat, self.portability)
        vhost.memory_budget = self._memory
        topology = Declarations(vhost, self._definitions)
        topology.settings = settings
        vhost.capture = self._captures.get(vhost.name)
        if vhost.capture is not None:
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
