"""Broker class: starts all parts of the broker in the order of their dependencies, and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple
from urllib.parse import quote

from warren.broker.access.access_control import Access
from warren.broker.access.audit_log import OFF, AuditLog
from warren.broker.access.login_backends import AccessConfigError, login_chain
from warren.broker.access.sasl_authentication import LoginSettings
from warren.broker.clock_jumps import ClockJumpMonitor
from warren.broker.configuration.config import BrokerConfig
from warren.broker.connection.admission import Admission
from warren.broker.connection.broker_node import BrokerNode
from warren.broker.connection.connection_settings import ConnectionSettings
from warren.broker.connection.descriptor_budget import DescriptorBudget, descriptor_budget
from warren.broker.connection.flow_control import DISK_RESOURCE, LOG_SOURCE
from warren.broker.connection.listen_address import Address
from warren.broker.connection.listener import BoundAddress, Listener, ListenError
from warren.broker.connection.socket_reader import SocketReader
from warren.broker.connection.tls import TlsContext
from warren.broker.disk_delays import DiskDelayMonitor
from warren.broker.http_api.server import MANAGEMENT_LIBRARY, PROMETHEUS_LIBRARY, HttpServer
from warren.broker.http_api.statistics_json import Statistics
from warren.broker.management.boot_definitions import contains_kind, load_definitions, read_definitions
from warren.broker.management.consumer_utilisation import ConsumerUtilisation
from warren.broker.management.control_socket import ControlSocket
from warren.broker.management.control_verbs import perform_verb
from warren.broker.management.defined_shovels import DefinedShovels
from warren.broker.management.definitions_export import BrokerMetadata
from warren.broker.management.items.queue_items import NODE
from warren.broker.management.management import Management
from warren.broker.management.statistics.collector import Collector
from warren.broker.management.statistics.node_gauges import node_gauges
from warren.broker.management.verbs.health import own_version
from warren.broker.model.broker_events import BrokerEvents
from warren.broker.model.capture.life_cycle_hook import LifeCycleHook
from warren.broker.model.capture.message_spans import SpanHook
from warren.broker.model.clock import Clock, RealClock
from warren.broker.model.compat_checks import PortabilityChecks
from warren.broker.model.memory_budget import MemoryBudget
from warren.broker.model.message_codec import describe_payload, routing_of
from warren.broker.model.policy.policy_keys import Json
from warren.broker.model.policy.runtime_parameters import SHOVEL, RuntimeParameters
from warren.broker.model.queue.message_recovery import restore_messages
from warren.broker.model.queue.queue import Queue
from warren.broker.model.rabbitmq_versions import BEHAVIOUR_BY_VERSION
from warren.broker.model.vhost.vhost_registry import VirtualHosts
from warren.broker.model.virtual_clock import VirtualClock
from warren.broker.pending_work import UNSEEN_BYTES_SECONDS, PendingWork
from warren.broker.resource_alarms import ResourceMonitor
from warren.broker.span_export import SpanExport, open_span_export
from warren.broker.stall_monitor import StallMonitor
from warren.broker.store.data_folder import DataFolder
from warren.broker.store.definitions.definition_rows import Snapshot
from warren.broker.store.definitions.definitions_database import Definitions, DefinitionsLost
from warren.broker.store.errors import StoreError
from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.log.group_commit import Sync
from warren.broker.store.log.log import Log
from warren.broker.store.log.recovery import Recovery
from warren.broker.store.stream.stream_recovery import recover_streams
from warren.broker.store.stream.stream_store import StreamStore
from warren.broker.store.unclaimed_queues import LogRecovery, name_queues
from warren.core.operating_system.memory import resident_memory
from warren.core.operating_system.sockets import COUNTS_UNREAD
from warren.wire import field_tables

logger: logging.Logger = logging.getLogger(__name__)

BULK_WORK_SECONDS: Final = 10.0
"""Seconds that a stopping broker takes to finish bulk work. What it then leaves is done again after the next start."""


class StoredState(NamedTuple):
    """Definitions and messages that a restarted broker found in its data folder."""

    definitions: Snapshot
    recovery: Recovery
    """Messages of durable queues and their state, as recovered from the log."""


class Broker:
    """An AMQP 0-9-1 broker in this process.

    `async with Broker() as broker: broker.url` runs it in memory, at a free port of the loopback address. With
    `data_dir`, durable queues and persistent messages survive a restart. It runs on the event loop that started it.

    :param config: all settings; without it, the keyword arguments below make one.
    :param data_dir: folder for durable data; None keeps everything in memory.
    :param host: address to listen at.
    :param port: port to listen at; 0 takes any free one.
    :param clock: clock of TTLs, delays and timeouts; a test passes a `VirtualClock` and advances it itself.
    :param files: file system that the log is written to; the operating system's by default.
    """

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        data_dir: str | Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        if config is None:
            config = BrokerConfig(data_dir=None if data_dir is None else Path(data_dir), host=host, port=port)
        self.config = config
        self.on_shutdown: Callable[[], None] | None = None
        """Callback for an operator's request to stop the broker (`warren ctl shutdown`); None refuses such requests."""
        self.failure: asyncio.Future[str] | None = None
        """Future that is resolved with the error text, one line, when the disk has failed; None until the start.

        After a failure the broker confirms nothing any more and has to be stopped.
        """
        self.management_addresses: tuple[Address, ...] = ()
        """Addresses of the HTTP API, once started; none unless `management_port` is set."""
        self.prometheus_addresses: tuple[Address, ...] = ()
        """Addresses of the Prometheus endpoint, once started; none unless `prometheus_port` is set."""
        self.bound_addresses: tuple[BoundAddress, ...] = ()
        """Addresses at which the broker listens, once started: first those without TLS, then those with it."""
        self._clock = clock or RealClock()
        self._files = files
        self._folder: DataFolder | None = None
        self._seeded = False
        self._definitions: Definitions | None = None
        self._log: Log | None = None
        self._captures: dict[bytes, LifeCycleHook] = {}
        self._spans: SpanExport | None = None
        self._memory: MemoryBudget | None = None
        self._node: BrokerNode | None = None
        self._listener: Listener | None = None
        self._descriptors: DescriptorBudget | None = None
        self._admission: Admission | None = None
        self._tls_context: TlsContext | None = None
        self._monitor: ResourceMonitor | None = None
        self._disk_delays: DiskDelayMonitor | None = None
        self._clock_jumps: ClockJumpMonitor | None = None
        self._stall_monitor: StallMonitor | None = None
        self._management: Management | None = None
        self._http: list[HttpServer] = []
        self._collector: Collector | None = None
        self._control: ControlSocket | None = None

    @property
    def port(self) -> int:
        """First port at which the broker listens, once started."""
        return self.bound_addresses[0].address.port

    @property
    def url(self) -> str:
        """AMQP URL of the first address and of `default_vhost`, with the credentials of the first configured user, if there
        is one.
        """
        scheme, address = self.bound_addresses[0]
        vhost = "" if self.config.default_vhost == "/" else quote(self.config.default_vhost, safe="")
        for user, password in self.config.users.items():
            return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{address}/{vhost}"
        return f"{scheme}://{address}/{vhost}"

    @property
    def access(self) -> Access:
        """Users and their permissions, once started. Only code on the broker's event loop may change them."""
        return self._running.access

    @property
    def virtual_hosts(self) -> VirtualHosts:
        """Virtual hosts, once started. Only code on the broker's event loop may change them."""
        return self._running.virtual_hosts

    @property
    def resources(self) -> ResourceMonitor:
        """Monitor of memory and disk, once started. Only code on the broker's event loop may change its limits."""
        assert self._running
        assert self._monitor is not None
        return self._monitor

    @property
    def _running(self) -> BrokerNode:
        if self._node is None:
            raise RuntimeError("the broker is not running; start it with `async with Broker() as broker`")
        return self._node

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- start

    async def start(self) -> None:
        """Restore definitions and messages from the data folder, and accept connections.

        :raises StoreError: if the data folder is in use, of an unknown version, or cannot be read or written.
        :raises SpanExportError: if spans are to be exported, and a package is missing or a variable OTEL_... is invalid.
        :raises CaptureError: if the queue configured to record life-cycle events is no stream, or cannot be declared.
        :raises DefinitionsError: if the definitions that the configuration names cannot be loaded.
        :raises ListenError: if an address is in use or is not this machine's.
        :raises TlsError: if a certificate or a list of ciphers cannot be used.
        """
        loop = asyncio.get_running_loop()
        self.failure = loop.create_future()
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._close_store)
            definitions = read_definitions(self.config.load_definitions)
            stored = await self._open_store(loop) if self.config.data_dir is not None else None
            await self._open_span_export(loop, undo)
            virtual_hosts = self._make_virtual_hosts(loop, undo)
            undo.callback(virtual_hosts.bulk_work.close)
            access = Access(virtual_hosts, self._definitions)
            parameters = RuntimeParameters(virtual_hosts, self._definitions)
            parameters.checks[SHOVEL] = _check_shovel
            if stored is not None:
                queues = self._restore_definitions(virtual_hosts, access, parameters, stored.definitions)
                self._restore_messages(queues, stored.recovery)
            if self._definitions is None or not self._seeded:
                self._seed(virtual_hosts, access, users=not contains_kind(definitions, "users"))
            load_definitions(definitions, BrokerMetadata(virtual_hosts, access, parameters))
            parameters.add_cluster_parameters()
            for event_stream in virtual_hosts.event_streams.values():
                event_stream.stream()
            node = self._make_node(loop, access, virtual_hosts)
            undo.callback(node.logins.close)
            node.audit = self._open_audit_log()
            undo.callback(node.hangups.close)
            self._start_memory(node)
            if stored is not None:
                self._connect_store(node)
            self._start_monitor(node, undo)
            self._start_stall_monitor(loop, undo)
            listener = await self._listen(node, undo)
            management = await self._open_control(node, parameters, listener)
            if self.config.management_port is not None or self.config.prometheus_port is not None:
                await self._open_http(management, undo)
            self._listener = listener
            self._node = node
            management.shovels.start()
            if isinstance(self._clock, VirtualClock):
                self._clock.watch(PendingWork(node, listener))
                if not COUNTS_UNREAD:
                    self._clock.quiet_seconds = UNSEEN_BYTES_SECONDS
            undo.pop_all()

    async def _open_span_export(
        self, loop: asyncio.AbstractEventLoop, undo: contextlib.AsyncExitStack
    ) -> None:
        """Start the export of spans if the setting `opentelemetry` is on."""
        if not self.config.opentelemetry:
            return
        # In a thread: importing OpenTelemetry's SDK takes a while, and a program that embeds the broker goes on.
        self._spans = await loop.run_in_executor(
            None, open_span_export, self.config.opentelemetry_endpoint, own_version()
        )
        if self._spans is not None:
            self._spans.start()
            undo.push_async_callback(self._close_span_export)

    async def _close_span_export(self) -> None:
        """Export the last spans, and end the thread that exports them."""
        spans, self._spans = self._spans, None
        if spans is not None:
            await asyncio.get_running_loop().run_in_executor(None, spans.close)

    def _abort_captures(self) -> None:
        for capture in self._captures.values():
            capture.abort()

    def _make_virtual_hosts(
        self, loop: asyncio.AbstractEventLoop, undo: contextlib.AsyncExitStack
    ) -> VirtualHosts:
        """Create and return the registry of virtual hosts.

        Also create the memory budget that all their queues share, and a hook for each virtual host whose messages'
        life-cycle events are to be recorded in a stream, or exported as spans.
        """
        if self._log is not None:
            self._memory = MemoryBudget(loop, self.config.memory_bytes // 2)
        streams = {vhost.encode(): stream.encode() for vhost, stream in self.config.captured.items()}
        spans = self._spans
        self._captures = {}

        def make_hook(vhost: bytes) -> LifeCycleHook | None:
            hook = self._captures.get(vhost)
            if hook is None and (vhost in streams or spans is not None):
                stream = streams.get(vhost, b"")
                if spans is None:
                    hook = LifeCycleHook(stream, self._clock, loop)
                else:
                    hook = SpanHook(vhost, stream, self._clock, loop, spans.steps)
                self._captures[vhost] = hook
            return hook

        undo.callback(self._abort_captures)
        virtual_hosts = VirtualHosts(
            self._clock,
            self._log,
            self._definitions,
            self._memory,
            BEHAVIOUR_BY_VERSION[self.config.compat],
            PortabilityChecks(self.config.strict),
            make_hook if streams or spans is not None else None,
            "" if self.config.timestamps == "off" else self.config.timestamps,
        )
        if self.config.event_exchange:
            virtual_hosts.events = BrokerEvents(self.config.event_exchange.encode(), self._clock, loop)
        return virtual_hosts

    def _make_node(
        self, loop: asyncio.AbstractEventLoop, access: Access, virtual_hosts: VirtualHosts
    ) -> BrokerNode:
        """Create and return the state that all connections share.

        Register callbacks that close the connections of a user or virtual host when it is deleted.
        """
        config = self.config
        node = BrokerNode(
            loop,
            access,
            login_chain(
                config.auth_backends, config.oauth2, config.auth_http, config.auth_cache_ttl / 1000, access
            ),
            LoginSettings(config.mechanisms, config.loopback_users, config.anonymous_user),
            ConnectionSettings(
                channel_max=config.channel_max,
                frame_max=config.frame_max,
                heartbeat=config.heartbeat,
                max_message_size=config.max_message_size,
                handshake_timeout=config.handshake_timeout,
                max_connections=config.max_connections,
                login_failure_delay=config.login_failure_delay,
                tcp_keepalive=config.tcp_keepalive,
                send_timeout=config.send_timeout,
                consumer_timeout=config.consumer_timeout,
                honours_immediate=config.immediate == "honour",
            ),
            virtual_hosts,
            self._log,
            self._definitions,
            server_properties(BEHAVIOUR_BY_VERSION[config.compat].version),
        )
        events = virtual_hosts.events
        if events is not None:
            node.flow.on_alarm = lambda resource, raised: events.emit(
                "alarm.set" if raised else "alarm.cleared",
                {"source": resource, "node": NODE},
                has_actor=False,
            )
        virtual_hosts.capture_blocked = lambda: bool(node.flow.alarm)
        access.users.on_deleted.append(
            lambda name: node.close_connections(f"user '{name}' was deleted", user=name)
        )
        virtual_hosts.on_deleted.append(
            lambda name: node.close_connections(f"vhost '{name}' is deleted", vhost=name)
        )
        return node

    def _open_audit_log(self) -> AuditLog | None:
        """Return the audit log; None if it is off.

        :raises AccessConfigError: if its file cannot be written.
        """
        target = self.config.audit
        if target == OFF:
            return None
        audit = AuditLog(target, self.config.audit_amqp)
        try:
            audit.check()
        except OSError as error:
            raise AccessConfigError(f"audit: cannot write {target}: {error.strerror or error}") from None
        return audit

    def _start_memory(self, node: BrokerNode) -> None:
        """Start paging: moving message contents from memory to disk while queues exceed their memory budget.

        Without a data folder nothing is paged.
        """
        memory = self._memory
        if memory is None:
            return
        memory.on_overload = node.flow.on_paging_behind
        if self.config.memory_alarm:
            memory.process_limit, memory.process_memory = self.config.memory_bytes, resident_memory
            if self._log is not None:
                memory.on_pressure = self._log.roll_segment
        memory.start(
            lambda: [
                queue
                for declarations in node.virtual_hosts.declarations.values()
                for queue in declarations.vhost.queues.values()
            ]
        )

    def _start_monitor(self, node: BrokerNode, undo: contextlib.AsyncExitStack) -> None:
        """Start the periodic checks that raise and clear the alarms for memory and disk space."""
        config = self.config
        self._monitor = ResourceMonitor(
            node,
            config.memory_bytes if config.memory_alarm else None,
            config.data_dir,
            config.disk_free_bytes,
        )
        undo.callback(self._monitor.stop)
        self._monitor.start()
        self._clock_jumps = ClockJumpMonitor(node.loop, self._clock)
        undo.callback(self._clock_jumps.stop)
        self._clock_jumps.start()
        if self._log is not None and self._definitions is not None:
            self._disk_delays = DiskDelayMonitor(node.loop, node.flow, self._log, self._definitions)
            undo.callback(self._disk_delays.stop)
            self._disk_delays.start()

    def _start_stall_monitor(self, loop: asyncio.AbstractEventLoop, undo: contextlib.AsyncExitStack) -> None:
        """Start to measure the turns of the event loop, if it is the one of `warren broker`.

        The loop of a program that embeds the broker is that program's; its turns are not measured.
        """
        reader = getattr(loop, "socket_reader", None)
        if isinstance(reader, SocketReader):
            self._stall_monitor = StallMonitor(reader.turns, self.config.stall_threshold)
            undo.callback(self._stall_monitor.stop)
            self._stall_monitor.start()

    async def _listen(self, node: BrokerNode, undo: contextlib.AsyncExitStack) -> Listener:
        """Accept connections at all configured addresses, and return the listener that does so."""
        config = self.config
        listener = Listener(node, self._make_admission(node))
        undo.push_async_callback(listener.close)
        undo.callback(listener.stop_accepting)
        for address in config.addresses:
            await listener.open(address, behind_proxy=config.proxy_protocol)
        if config.tls_addresses:
            self._tls_context = TlsContext(config.tls)
            undo.callback(self._tls_context.stop)
            self._tls_context.watch(node.loop)
        for address in config.tls_addresses:
            await listener.open(address, self._tls_context, behind_proxy=config.proxy_protocol)
        self.bound_addresses = tuple(listener.bound)
        for bound in self.bound_addresses:
            logger.info("event=listener.started address=%s", bound)
        return listener

    def _make_admission(self, node: BrokerNode) -> Admission:
        """Create and return the bounds of the sockets that clients may have."""
        ports = (self.config.management_port, self.config.prometheus_port)
        self._descriptors = descriptor_budget(sum(port is not None for port in ports))
        most = self._descriptors.connections
        self._admission = Admission(
            node.loop,
            most,
            min(self.config.max_unopened_connections, most),
            self.config.max_unopened_per_address,
        )
        return self._admission

    async def _open_control(
        self, node: BrokerNode, parameters: RuntimeParameters, listener: Listener
    ) -> Management:
        """Start management, which performs operators' requests, and open its control socket if one is configured."""
        assert self._monitor is not None
        assert self._descriptors is not None
        assert self._admission is not None
        management = Management(
            node=node,
            parameters=parameters,
            metadata=BrokerMetadata(node.virtual_hosts, node.access, parameters),
            resources=self._monitor,
            config=self.config,
            descriptors=self._descriptors,
            admission=self._admission,
            listener=listener,
            listeners=self._describe_listeners,
            utilisation=ConsumerUtilisation(node),
            shovels=DefinedShovels(node, parameters, self._clock),
            stalls=self._stall_monitor,
            disk_delays=self._disk_delays,
            memory=self._memory,
            audit=node.audit,
            spans=self._spans.steps if self._spans is not None else None,
            on_shutdown=self.on_shutdown,
        )
        path = self.config.control_path
        if path is not None:
            control = ControlSocket(partial(perform_verb, management))
            try:
                await control.open(path)
            except OSError as error:
                raise StoreError(
                    f"cannot open the control socket {path}: {error.strerror or error}"
                ) from None
            self._control = control
        management.utilisation.start()
        self._management = management
        return management

    def _describe_listeners(self) -> list[str]:
        """Return the addresses that accept connections, with the scheme of their URLs, as text for people."""
        scheme = "https" if self.config.management_tls else "http"
        found = [f"{bound.scheme} at {bound.address}" for bound in self.bound_addresses]
        found += [f"{scheme} at {address}" for address in self.management_addresses]
        scheme = "https" if self.config.prometheus_tls else "http"
        return found + [f"{scheme}/prometheus at {address}" for address in self.prometheus_addresses]

    async def _open_http(self, management: Management, undo: contextlib.AsyncExitStack) -> None:
        """Collect statistics, and serve the HTTP API and the Prometheus endpoint, as far as they have a port."""
        config, most = self.config, management.descriptors.http_connections
        patience = config.handshake_timeout / 2
        self._collector = Collector(management.node, partial(node_gauges, management))
        undo.callback(self._collector.stop)
        self._collector.start()
        if config.management_port is not None:
            self.management_addresses = await self._serve(
                HttpServer(most, patience, MANAGEMENT_LIBRARY, management, Statistics(self._collector)),
                Address(config.management_host, config.management_port),
                config.management_tls,
                undo,
            )
            scheme = "https" if config.management_tls else "http"
            for each in self.management_addresses:
                logger.info("event=http_api.started address=%s", f"{scheme}://{each}")
        if config.prometheus_port is not None:
            self.prometheus_addresses = await self._serve(
                HttpServer(most, patience, PROMETHEUS_LIBRARY, management, self._collector),
                Address(config.prometheus_host, config.prometheus_port),
                config.prometheus_tls,
                undo,
            )
            scheme = "https" if config.prometheus_tls else "http"
            for each in self.prometheus_addresses:
                logger.info("event=prometheus.started address=%s", f"{scheme}://{each}/metrics")

    async def _serve(
        self, server: HttpServer, address: Address, encrypted: bool, undo: contextlib.AsyncExitStack
    ) -> tuple[Address, ...]:
        """Serve HTTP at an address, and return the addresses at which connections are accepted.

        :param encrypted: True to use TLS, with the broker's certificate.
        """
        self._http.append(server)
        undo.push_async_callback(server.close)
        if encrypted and self._tls_context is None:
            self._tls_context = TlsContext(self.config.tls)
            undo.callback(self._tls_context.stop)
            self._tls_context.watch(asyncio.get_running_loop())
        try:
            return tuple(await server.open(address, self._tls_context if encrypted else None))
        except OSError as error:
            raise ListenError(address, error) from None

    async def _open_store(self, loop: asyncio.AbstractEventLoop) -> StoredState:
        """Open the data folder, its log and its streams; return the definitions and messages found in it."""
        assert self.config.data_dir is not None
        self._folder = DataFolder.open(self.config.data_dir, self._files)
        accepted = self.config.accept_data_loss
        vhost = self.config.default_vhost.encode()
        log = LogRecovery(self._folder, vhost, accepted, describe_payload, routing_of)
        # In threads: a program that embeds the broker runs other things on this loop.
        opening = loop.run_in_executor(None, Definitions.open, self._folder, loop, accepted, log.claim)
        try:
            self._definitions = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on: what it opens has to be closed.
            with contextlib.suppress(StoreError):
                self._definitions = await opening
            raise
        except DefinitionsLost as error:
            raise await loop.run_in_executor(None, log.refuse, error) from None
        definitions = self._definitions.load()
        self._seeded = self._definitions.seeded
        known = {row.incarnation for row in definitions.queues}
        recovery = await loop.run_in_executor(None, log.result, known)
        manifest = recovery.manifest
        streams = await loop.run_in_executor(
            None, recover_streams, self._folder, known, recovery.clean, manifest
        )
        for line in name_queues((*recovery.damage, *streams.damage), definitions.queues):
            logger.error("event=store.damage_found detail=%r", line)
        for line in manifest.notes:
            logger.warning("event=store.marks_lost detail=%r", line)
        await loop.run_in_executor(None, recovery.finish)
        self._log = Log(recovery, loop, gate=self._definitions, sync=Sync(self.config.sync))
        self._log.streams = StreamStore(loop, self._folder, self._log, self._definitions, streams)
        self._folder.finish_upgrade()
        return StoredState(definitions, recovery)

    def _seed(self, virtual_hosts: VirtualHosts, access: Access, users: bool) -> None:
        """Add the configured default virtual host, if it is missing.

        :param users: True to add the configured users, too: administrators with all permissions in that virtual host.
        """
        vhost = self.config.default_vhost
        if vhost not in virtual_hosts:
            virtual_hosts.add(vhost)
        for name, password in self.config.users.items():
            if users and name not in access.users:
                access.users.add(name, password, tags=("administrator",))
                access.permissions.set(name, vhost, ".*", ".*", ".*")
        if self._definitions is not None:
            self._definitions.seed()

    def _restore_definitions(
        self,
        virtual_hosts: VirtualHosts,
        access: Access,
        parameters: RuntimeParameters,
        snapshot: Snapshot,
    ) -> dict[int, Queue]:
        """Restore virtual hosts, users, parameters, exchanges, queues and bindings.

        Returns the queues by their incarnation, the number under which the log stores their messages.
        """
        virtual_hosts.restore(snapshot.virtual_hosts)
        access.restore(snapshot)
        for name in sorted(
            {*(row.vhost for row in snapshot.exchanges), *(row.vhost for row in snapshot.queues)}
        ):
            # A data folder of a version that did not store virtual hosts has no rows of them.
            if name not in virtual_hosts.declarations:
                virtual_hosts.add(name.decode())
        parameters.restore(snapshot.parameters, snapshot.global_parameters)
        queues: dict[int, Queue] = {}
        for name, declarations in virtual_hosts.declarations.items():
            queues.update(
                declarations.restore(
                    [row for row in snapshot.exchanges if row.vhost == name],
                    [row for row in snapshot.queues if row.vhost == name],
                    [row for row in snapshot.bindings if row.vhost == name],
                )
            )
        return queues

    def _restore_messages(self, queues: dict[int, Queue], recovery: Recovery) -> None:
        """Restore the messages of queues, and dead-letter those that expired while the broker was down.

        :param queues: durable queues by their incarnation, the number under which the log stores their messages.
        :param recovery: result of reading the log: the messages of each queue.
        """
        count = 0
        for incarnation, queue in queues.items():
            recovered = recovery.queues.pop(incarnation, None)
            if recovered is not None:
                if queue.stored_window is not None:
                    queue.stored_window.restore(payload for _, payload, _ in recovered.messages)
                count += restore_messages(queue, recovered)
        # Only now that all queues are restored: expired messages may be dead-lettered to any of them.
        for queue in queues.values():
            queue.expiry.touch()
            queue.expiry.drop_expired()
            queue.expiry.schedule_head_timer()
        if not queues and recovery.next_segment == 1:
            # A new folder: nothing was stopped, cleanly or not.
            return
        logger.info(
            "event=broker.restored queues=%d messages=%d clean=%s", len(queues), count, recovery.clean
        )

    def _connect_store(self, node: BrokerNode) -> None:
        """Register callbacks that log and definitions call when data is on disk, or the disk is full or fails.

        Confirms and replies to clients are sent when the data that they depend on is on disk.
        """
        log, definitions = self._log, self._definitions
        assert log is not None
        assert definitions is not None
        log.on_synced = node.on_synced
        log.on_full = node.on_disk_full
        log.on_failed = lambda line: self._on_disk_failed(node, line)
        definitions.on_committed = node.on_committed
        definitions.on_failed = lambda line: self._on_disk_failed(node, line)

    def _on_disk_failed(self, node: BrokerNode, line: str) -> None:
        """Send basic.nack for publishes that wait for the disk, raise the disk alarm, and resolve `failure`.

        A failed write or sync of a file is never retried; the broker has to be stopped.

        :param line: the error text, one line, to which the future `failure` is resolved.
        """
        logger.critical("event=store.failed reason=%r", line)
        node.flow.set_alarm(LOG_SOURCE, DISK_RESOURCE, True)
        node.on_failed()
        if self.failure is not None and not self.failure.done():
            self.failure.set_result(line)

    # -- stop

    async def stop(self) -> None:
        """Stop the broker: close all connections, write and sync all pending data, and release the data folder.

        Connections are closed with 320 CONNECTION_FORCED.
        """
        listener, node = self._listener, self._node
        management, control, http, collector = self._management, self._control, self._http, self._collector
        self._listener = self._node = self._management = self._control = self._collector = None
        self._http = []
        for server in http:
            await server.close()
        if management is not None:
            await management.shovels.stop()
        if collector is not None:
            collector.stop()
        if management is not None:
            management.utilisation.stop()
        if control is not None:
            await control.close()
        if node is not None:
            node.logins.close()
            if node.audit is not None:
                await node.audit.flush()
        if self._monitor is not None:
            self._monitor.stop()
        if self._disk_delays is not None:
            self._disk_delays.stop()
        if self._clock_jumps is not None:
            self._clock_jumps.stop()
        if self._stall_monitor is not None:
            self._stall_monitor.stop()
        if self._tls_context is not None:
            self._tls_context.stop()
        if listener is not None:
            listener.stop_accepting()
        if self._memory is not None:
            self._memory.stop()
        if node is not None:
            await self._end_connections(node)
        if listener is not None:
            await listener.close()
        if node is not None:
            node.hangups.close()
        try:
            await self._close_store()
            await self._close_span_export()
        finally:
            if node is not None:
                node.virtual_hosts.bulk_work.close()

    async def _end_connections(self, node: BrokerNode) -> None:
        """Send outstanding publisher confirms, close all connections, and stop event recording and queues' timers."""
        await node.end_connections()
        await node.virtual_hosts.bulk_work.finish(BULK_WORK_SECONDS)
        for capture in self._captures.values():
            capture.close()
        for declarations in node.vhosts.values():
            declarations.vhost.dead_lettering.stop()
            for queue in declarations.vhost.all_queues():
                queue.stop()

    async def _close_store(self) -> None:
        """Close log, definitions and data folder, each even if another cannot be closed."""
        log, definitions, folder = self._log, self._definitions, self._folder
        self._log = self._definitions = self._folder = None
        async with contextlib.AsyncExitStack() as rest:
            # A full disk, for example, refuses the last records of the log.
            if folder is not None:
                rest.callback(folder.close)
            if definitions is not None:
                rest.push_async_callback(definitions.close)
            if log is not None:
                rest.push_async_callback(log.close)
                if log.streams is not None:
                    rest.callback(log.streams.close)


def _check_shovel(name: str, value: Json) -> None:
    """Check the definition of a shovel.

    :raises OperationRefused: if it is wrong.
    """
    # Imported only where a shovel is defined.
    from warren.broker.shovel.definition import check_definition

    check_definition(name, value)


def server_properties(rabbitmq_version: str) -> bytes:
    """Return the server properties of connection.start, an encoded table.

    Source: https://www.rabbitmq.com/docs/connections#capabilities.

    :param rabbitmq_version: the version of RabbitMQ that the broker emulates.
    """
    return field_tables.encode(
        {
            "product": "Warren",
            "version": rabbitmq_version,
            "warren_version": own_version(),
            "platform": "Python",
            "capabilities": {
                "publisher_confirms": True,
                "exchange_exchange_bindings": True,
                "basic.nack": True,
                "consumer_cancel_notify": True,
                # Since 4.3.7: clients then answer the broker's basic.cancel with basic.cancel-ok.
                "accept_consumer_cancel_ok": True,
                "connection.blocked": True,
                "authentication_failure_close": True,
                "consumer_priorities": True,
                "per_consumer_qos": True,
                "direct_reply_to": True,
            },
        }
    )
