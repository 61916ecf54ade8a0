"""The broker as a whole: opens the disk, restores what was there, listens, and stops in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from warren.broker.access.access_control import Access
from warren.broker.access.sasl import Login
from warren.broker.configuration.config import BrokerConfig
from warren.broker.connection.listener import Bound, Listener
from warren.broker.connection.node import DISK, LOG, Node
from warren.broker.connection.peer_limits import Limits
from warren.broker.connection.tls import Secured
from warren.broker.management.boot_definitions import contains_kind, load_definitions, read_definitions
from warren.broker.management.control_socket import ControlSocket
from warren.broker.management.definitions_export import BrokerMetadata
from warren.broker.management.management import Management
from warren.broker.model.capture.life_cycle_hook import LifeCycleHook
from warren.broker.model.clock import Clock, RealClock
from warren.broker.model.compat_checks import PortabilityChecks
from warren.broker.model.memory_budget import MemoryBudget
from warren.broker.model.message_codec import describe_payload
from warren.broker.model.policy.runtime_parameters import RuntimeParameters
from warren.broker.model.queue.message_recovery import restore_messages
from warren.broker.model.queue.queue import Queue
from warren.broker.model.rabbitmq_versions import BEHAVIOUR_BY_VERSION
from warren.broker.model.vhost.vhost_registry import VirtualHosts
from warren.broker.model.virtual_clock import VirtualClock
from warren.broker.pending_work import PendingWork
from warren.broker.process_memory import resident_memory
from warren.broker.resource_alarms import Resources
from warren.broker.store.data_folder import DataFolder
from warren.broker.store.definitions.definitions_database import Definitions
from warren.broker.store.errors import StoreError
from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.log.group_commit import Sync
from warren.broker.store.log.log import Log
from warren.broker.store.log.recovery import Recovery, recover
from warren.broker.store.stream.stream_recovery import recover_streams
from warren.broker.store.stream.stream_store import StreamStore
from warren.wire import field_tables
from warren.wire.reply_codes import AmqpError, Reply

logger: logging.Logger = logging.getLogger(__name__)


class Broker:
    """An AMQP 0-9-1 broker in this process.

    `async with Broker() as broker: broker.url` runs it in memory at a free port of the loopback address; with `data_dir`,
    durable queues and persistent messages outlive it. It lives on the event loop that started it.

    :param config: how it runs; keyword arguments are those of `BrokerConfig`.
    :param clock: the time that TTLs, delays and timeouts go by; `VirtualClock` is one that a test moves.
    :param files: the file system that the log is written to; the operating system's unless a test says otherwise.
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
        """Called when an operator tells the broker to stop. Without it, that is refused."""
        self.failure: asyncio.Future[str] | None = None
        """Resolved with one line when the disk has failed: the broker confirms nothing any more and has to be stopped."""
        self._clock = clock or RealClock()
        self._files = files
        self._folder: DataFolder | None = None
        self._seeded = False
        self._definitions: Definitions | None = None
        self._log: Log | None = None
        self._captures: dict[bytes, LifeCycleHook] = {}
        self._node: Node | None = None
        self._unwatch: Callable[[], None] | None = None
        self._memory: MemoryBudget | None = None
        self._listener: Listener | None = None
        self._management: Management | None = None
        self._control: ControlSocket | None = None
        self._resources: Resources | None = None
        self._secured: Secured | None = None
        self.bound: tuple[Bound, ...] = ()
        """Where it listens, once started: first without TLS, then with it."""

    @property
    def port(self) -> int:
        """The first port that it listens at, once started."""
        return self.bound[0].address.port

    @property
    def url(self) -> str:
        """Its AMQP URL, with the credentials of the first user that its configuration names, if it names one."""
        scheme, address = self.bound[0]
        for user, password in self.config.users.items():
            return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{address}/"
        return f"{scheme}://{address}/"

    @property
    def access(self) -> Access:
        """Its users and their permissions, once started; they are changed on its event loop."""
        return self._running.access

    @property
    def virtual_hosts(self) -> VirtualHosts:
        """Its virtual hosts, once started; they are changed on its event loop."""
        return self._running.virtual_hosts

    @property
    def resources(self) -> Resources:
        """Its watch over memory and disk, once started; limits may be changed there."""
        assert self._running
        assert self._resources is not None
        return self._resources

    @property
    def _running(self) -> Node:
        if self._node is None:
            raise RuntimeError("the broker is not running: `async with Broker() as broker`")
        return self._node

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Restore what is on disk and listen.

        :raises StoreError: if the data folder is in use, of an unknown version, or cannot be read or written.
        :raises CaptureError: if events are to go to a queue that is no stream.
        :raises DefinitionsError: if the definitions that the configuration names cannot be loaded.
        :raises ListenError: if an address is taken or not this machine's.
        :raises TlsError: if a certificate or a list of ciphers cannot be used.
        """
        loop = asyncio.get_running_loop()
        self.failure = loop.create_future()
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._close_store)
            definitions = read_definitions(self.config.load_definitions)
            recovery = await self._open_store(loop) if self.config.data_dir is not None else None
            if self._log is not None:
                self._memory = MemoryBudget(loop, self.config.memory_bytes // 2)
            compat = BEHAVIOUR_BY_VERSION[self.config.compat]
            portability = PortabilityChecks(self.config.strict)
            self._captures = {
                vhost.encode(): LifeCycleHook(stream.encode(), self._clock, loop)
                for vhost, stream in self.config.captured.items()
            }
            for capture in self._captures.values():
                undo.callback(capture.abort)
            virtual_hosts = VirtualHosts(
                self._clock, self._log, self._definitions, self._memory, compat, portability, self._captures
            )
            access = Access(virtual_hosts, self._definitions)
            parameters = RuntimeParameters(virtual_hosts, self._definitions)
            limits = Limits(
                self.config.channel_max,
                self.config.frame_max,
                self.config.heartbeat,
                self.config.max_message_size,
                self.config.handshake_timeout,
                self.config.max_connections,
                self.config.consumer_timeout,
                self.config.immediate == "honour",
                "" if self.config.timestamps == "off" else self.config.timestamps,
            )
            if recovery is not None:
                self._restore(virtual_hosts, access, parameters, recovery)
            if self._definitions is None or not self._seeded:
                self._seed(virtual_hosts, access, users=not contains_kind(definitions, "users"))
            load_definitions(definitions, BrokerMetadata(virtual_hosts, access, parameters))
            for event_stream in virtual_hosts.event_streams.values():
                event_stream.stream()
            node = Node(
                loop,
                access,
                Login(self.config.mechanisms, self.config.loopback_users, self.config.anonymous_user),
                limits,
                virtual_hosts,
                self._log,
                self._definitions,
                server_properties(compat.version),
            )
            virtual_hosts.capture_blocked = lambda: bool(node.alarm)
            access.users.on_deleted.append(
                lambda name: node.close_connections(f"user '{name}' was deleted", user=name)
            )
            virtual_hosts.on_deleted.append(
                lambda name: node.close_connections(f"vhost '{name}' is deleted", vhost=name)
            )
            if self._memory is not None:
                self._memory.on_overload = node.on_behind
                if self.config.memory_alarm:
                    self._memory.process_limit, self._memory.process_memory = (
                        self.config.memory_bytes,
                        resident_memory,
                    )
                    if self._log is not None:
                        self._memory.on_pressure = self._log.roll_segment
                self._memory.start(
                    lambda: [
                        queue
                        for topology in virtual_hosts.declarations.values()
                        for queue in topology.vhost.queues.values()
                    ]
                )
            if recovery is not None:
                self._connect_store(node)
            config = self.config
            self._resources = Resources(
                node,
                config.memory_bytes if config.memory_alarm else None,
                config.data_dir,
                config.disk_free_bytes,
            )
            undo.callback(self._resources.stop)
            self._resources.start()
            listener = Listener(node)
            undo.push_async_callback(listener.close)
            undo.callback(listener.stop_accepting)
            for address in config.addresses:
                await listener.open(address, behind_proxy=config.proxy_protocol)
            if config.tls_addresses:
                self._secured = Secured(config.tls)
                undo.callback(self._secured.stop)
                self._secured.watch(loop)
            for address in config.tls_addresses:
                await listener.open(address, self._secured, behind_proxy=config.proxy_protocol)
            self.bound = tuple(listener.bound)
            for where in self.bound:
                logger.info("event=listening at=%s", where)
            await self._open_control(node, parameters)
            self._listener = listener
            self._node = node
            if isinstance(self._clock, VirtualClock):
                self._unwatch = self._clock.watch(PendingWork(node))
            undo.pop_all()

    async def _open_control(self, node: Node, parameters: RuntimeParameters) -> None:
        assert self._resources is not None
        management = Management(
            node,
            parameters,
            self._resources,
            self.config,
            lambda: [f"{where.scheme} at {where.address}" for where in self.bound],
        )
        path = self.config.control_path
        if path is not None:
            control = ControlSocket(management.perform)
            try:
                await control.open(path)
            except OSError as error:
                raise StoreError(
                    f"cannot open the control socket {path}: {error.strerror or error}"
                ) from None
            self._control = control
        management.utilisation.start()
        management.on_shutdown = self.on_shutdown
        self._management = management

    async def _open_store(self, loop: asyncio.AbstractEventLoop) -> Recovery:
        assert self.config.data_dir is not None
        self._folder = DataFolder.open(self.config.data_dir, self._files)
        self._definitions = Definitions.open(self._folder, loop)
        self._snapshot = self._definitions.load()
        self._seeded = self._definitions.seeded
        known = {row.incarnation for row in self._snapshot.queues}
        # In a thread: whoever embeds the broker has other things on this loop.
        recovery = await loop.run_in_executor(
            None, partial(recover, self._folder, known, describe=describe_payload)
        )
        streams = await loop.run_in_executor(None, recover_streams, self._folder, known, recovery.clean)
        for line in (*recovery.damage, *streams.damage):
            logger.error("event=damage %s", line)
        self._log = Log(recovery, loop, gate=self._definitions, sync=Sync(self.config.sync))
        self._log.streams = StreamStore(loop, self._folder, self._log, self._definitions, streams)
        return recovery

    def _seed(self, virtual_hosts: VirtualHosts, access: Access, users: bool) -> None:
        """Make the first virtual host, and the first users, of whom the configuration tells, if `users`."""
        vhost = self.config.default_vhost
        if vhost not in virtual_hosts:
            virtual_hosts.add(vhost)
        for name, password in self.config.users.items():
            if users and name not in access.users:
                access.users.add(name, password, tags=("administrator",))
                access.permissions.set(name, vhost, ".*", ".*", ".*")
        if self._definitions is not None:
            self._definitions.seed()

    def _restore(
        self, virtual_hosts: VirtualHosts, access: Access, parameters: RuntimeParameters, recovery: Recovery
    ) -> None:
        snapshot = self._snapshot
        virtual_hosts.restore(snapshot.virtual_hosts)
        access.restore(snapshot)
        for name in sorted(
            {*(row.vhost for row in snapshot.exchanges), *(row.vhost for row in snapshot.queues)}
        ):
            # A folder from before virtual hosts were stored has none of them.
            if name not in virtual_hosts.declarations:
                virtual_hosts.add(name.decode())
        parameters.restore(snapshot.parameters, snapshot.global_parameters)
        queues: dict[int, Queue] = {}
        for name, topology in virtual_hosts.declarations.items():
            queues.update(
                topology.restore(
                    [row for row in snapshot.exchanges if row.vhost == name],
                    [row for row in snapshot.queues if row.vhost == name],
                    [row for row in snapshot.bindings if row.vhost == name],
                )
            )
        count = 0
        for incarnation, queue in queues.items():
            recovered = recovery.queues.pop(incarnation, None)
            if recovered is not None:
                if queue.stored_window is not None:
                    queue.stored_window.restore(payload for _, payload, _ in recovered.messages)
                count += restore_messages(queue, recovered)
        # Only now: what has died meanwhile may go to any of them.
        for queue in queues.values():
            queue.expiry.touch()
            queue.expiry.drop_expired()
            queue.expiry.schedule_head_timer()
        logger.info("event=restored queues=%d messages=%d clean=%s", len(queues), count, recovery.clean)

    def _connect_store(self, node: Node) -> None:
        log, definitions = self._log, self._definitions
        assert log is not None
        assert definitions is not None
        log.on_synced = node.on_synced
        log.on_full = node.on_full
        log.on_failed = lambda line: self._failed(node, line)
        definitions.on_committed = node.on_committed
        definitions.on_failed = lambda line: self._failed(node, line)

    def _failed(self, node: Node, line: str) -> None:
        """After a failed write or sync nothing is tried again on that file: refuse what waits, and have the process end."""
        logger.critical("event=disk_failed %s", line)
        node.set_alarm(LOG, DISK, True)
        node.on_failed()
        if self.failure is not None and not self.failure.done():
            self.failure.set_result(line)

    async def stop(self) -> None:
        """Close every connection with 320 CONNECTION_FORCED, write and sync what waits, release the data folder."""
        listener, node = self._listener, self._node
        management, control = self._management, self._control
        self._listener = self._node = self._management = self._control = None
        if management is not None:
            management.utilisation.stop()
        if control is not None:
            await control.close()
        if self._resources is not None:
            self._resources.stop()
        if self._secured is not None:
            self._secured.stop()
        if listener is not None:
            listener.stop_accepting()
        if self._memory is not None:
            self._memory.stop()
        if node is not None:
            reason = AmqpError(
                Reply.CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'"
            )
            await node.settle()
            for connection in list(node.connections):
                connection.cancel_all()
            for connection in list(node.connections):
                connection.conversation.shut_down(connection, reason)
            for capture in self._captures.values():
                capture.close()
            for topology in node.vhosts.values():
                topology.vhost.dead_lettering.stop()
                for queue in topology.vhost.all_queues():
                    queue.stop()
        if listener is not None:
            await listener.close()
        await self._close_store()

    async def _close_store(self) -> None:
        log, definitions, folder = self._log, self._definitions, self._folder
        self._log = self._definitions = self._folder = None
        async with contextlib.AsyncExitStack() as rest:
            # Each is closed even if the one before it cannot be: a full disk refuses the last of the log.
            if folder is not None:
                rest.callback(folder.close)
            if definitions is not None:
                rest.push_async_callback(definitions.close)
            if log is not None:
                rest.push_async_callback(log.close)
                if log.streams is not None:
                    rest.callback(log.streams.close)


def server_properties(follows: str) -> bytes:
    """What connection.start says of the server (https://www.rabbitmq.com/docs/connections#capabilities)."""
    try:
        own = version("warren")
    except PackageNotFoundError:
        own = "unknown"
    return field_tables.encode(
        {
            "product": "Warren",
            "version": follows,
            "warren_version": own,
            "platform": "Python",
            "capabilities": {
                "publisher_confirms": True,
                "exchange_exchange_bindings": True,
                "basic.nack": True,
                "consumer_cancel_notify": True,
                "connection.blocked": True,
                "authentication_failure_close": True,
                "consumer_priorities": True,
                "per_consumer_qos": True,
                "direct_reply_to": True,
            },
        }
    )
