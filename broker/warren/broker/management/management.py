"""Management of a broker: performs verbs, the named requests of operators such as `list_queues`.

Requests arrive over the control socket.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from warren.broker.access.audit_log import DONE, FAILED, REFUSED, AuditLog, Change
from warren.broker.configuration.config import BrokerConfig
from warren.broker.connection.admission import Admission
from warren.broker.connection.broker_node import BrokerNode
from warren.broker.connection.descriptor_budget import DescriptorBudget
from warren.broker.connection.listener import Listener
from warren.broker.disk_delays import DiskDelayMonitor
from warren.broker.management.consumer_utilisation import ConsumerUtilisation
from warren.broker.management.definitions_export import BrokerMetadata
from warren.broker.management.items.queue_items import NODE
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json, Request, RequestRefused
from warren.broker.management.verbs import (
    client_service,
    definitions,
    diagnostics,
    health,
    listing,
    operations,
    permissions,
    policies,
    runtime_parameters,
    shovels,
    users,
    virtual_hosts,
)
from warren.broker.model.capture.message_spans import StepQueue
from warren.broker.model.clock import Clock
from warren.broker.model.memory_budget import MemoryBudget
from warren.broker.model.operator_errors import OperationRefused
from warren.broker.model.policy.runtime_parameters import SHOVEL, RuntimeParameters
from warren.broker.model.vhost.vhost import VirtualHost
from warren.broker.operations.principal import Principal
from warren.broker.resource_alarms import ResourceMonitor
from warren.broker.stall_monitor import StallMonitor
from warren.core.operating_system.descriptors import count_open_descriptors
from warren.wire.reply_codes import AmqpError

if TYPE_CHECKING:
    from warren.broker.shovel.shovels import Shovels

logger = logging.getLogger(__name__)

READ_ONLY_PREFIXES: Final = (
    "list_",
    "check_",
    "shovel_status",
    "export_",
    "ping",
    "status",
    "cluster_status",
    "environment",
    "listeners",
    "alarms",
    "authenticate_user",
    "await_startup",
    "wait",
    "version",
    "server_version",
    "report",
    "is_",
    "node_health_check",
    "hash_password",
)
"""Name prefixes of the verbs that change nothing; requests for all other verbs are logged."""


CONTROL_SOCKET: Final = "control socket"
"""Source of operators' changes in the audit log."""


class Management:
    """Management interface of one broker: performs verbs on its node, parameters, resources and configuration."""

    def __init__(
        self,
        node: BrokerNode,
        parameters: RuntimeParameters,
        resources: ResourceMonitor,
        stalls: StallMonitor | None,
        disk_delays: DiskDelayMonitor | None,
        config: BrokerConfig,
        descriptors: DescriptorBudget,
        admission: Admission,
        listener: Listener,
        listeners: Callable[[], list[str]],
        audit: AuditLog | None,
        clock: Clock,
    ) -> None:
        """Create the management interface of a started broker.

        :param stalls: monitor of the event loop; None if the broker runs on a loop that measures nothing
        :param disk_delays: monitor of the disk; None without a data folder
        :param audit: log of the changes; None if there is none
        :param listener: listener for AMQP clients
        :param clock: clock of the broker
        :param listeners: function that returns the addresses that accept connections, as text for people
        """
        self.node = node
        self.parameters = parameters
        self.metadata = BrokerMetadata(node.virtual_hosts, node.access, parameters)
        self.resources = resources
        self.stalls = stalls
        self.disk_delays = disk_delays
        self.config = config
        self.descriptors = descriptors
        self.admission = admission
        self.listener = listener
        self.is_stopped = False
        """True from the verb `stop_app` to `start_app`: no client is connected, nor can connect."""
        self.listeners = listeners
        self.audit = audit
        self.on_shutdown: Callable[[], None] | None = None
        """Callback that stops the broker; None if only the embedding program can stop it."""
        self.memory: MemoryBudget | None = None
        """Guard of the memory that messages take; None without a data folder."""
        self.spans: StepQueue | None = None
        """Queue of message spans to export, with its counters; None if spans are off."""
        self.shovels: Shovels | None = None
        """Shovels of the broker; None until the first one is defined."""
        self._clock = clock
        self.started = time.monotonic()
        self.utilisation = ConsumerUtilisation(node)

    async def perform(self, verb: str, request: Request) -> Json:
        """Perform one verb and return its result, after its changes are stored on disk.

        :raises RequestRefused: if there is no such verb, or the verb refuses the request
        :raises OperationRefused: if the change is not possible, for example because an object does not exist
        """
        action = VERBS.get(verb)
        if action is None:
            raise RequestRefused(f"there is no verb {verb!r}")
        async with self.stored():
            try:
                result = action(self, request)
                if inspect.isawaitable(result):
                    result = await result
            except AmqpError as error:
                raise RequestRefused(error.explanation) from None
            if not verb.startswith(READ_ONLY_PREFIXES):
                logger.info("event=management.verb_performed verb=%s arguments=%s", verb, request.loggable())
        return result

    async def perform_for_operator(self, verb: str, request: Request) -> Json:
        """Perform one verb of a request at the control socket, and record it in the audit log if it may change something.

        :raises RequestRefused: if there is no such verb, or the verb refuses the request
        :raises OperationRefused: if the change is not possible
        """
        audit = self.audit
        if audit is None or verb not in VERBS or verb.startswith(READ_ONLY_PREFIXES):
            return await self.perform(verb, request)
        outcome = FAILED
        try:
            result = await self.perform(verb, request)
            outcome = DONE
            return result
        except OperationRefused:
            outcome = REFUSED
            raise
        finally:
            await audit.record(Change("", CONTROL_SOCKET, verb, request.object(), outcome))

    @contextlib.asynccontextmanager
    async def stored(self) -> AsyncIterator[None]:
        """Wait at the end of the block until the changes of definitions that it has made are on disk."""
        definitions = self.node.definitions
        before = definitions.submitted if definitions is not None else 0
        yield
        if definitions is not None and definitions.submitted != before:
            await definitions.flush()

    def start_shovels(self) -> None:
        """Start the shovels that are defined, and follow later changes of their definitions."""
        self.parameters.on_changed.append(self._on_parameter_changed)
        for vhost, component, name in list(self.parameters.stored):
            self._on_parameter_changed(vhost, component, name)

    async def stop_shovels(self) -> None:
        """Stop all shovels, and follow changes of their definitions no more."""
        if self._on_parameter_changed in self.parameters.on_changed:
            self.parameters.on_changed.remove(self._on_parameter_changed)
        if self.shovels is not None:
            await self.shovels.stop()

    def _on_parameter_changed(self, vhost: bytes, component: str, name: str) -> None:
        if component != SHOVEL:
            return
        if self.shovels is None:
            # Imported only where a shovel is defined.
            from warren.broker.shovel.shovels import Shovels

            self.shovels = Shovels(self.node, self.parameters, self._clock, NODE)
        self.shovels.apply(vhost, name)

    def node_gauges(self) -> list[int]:
        """Return used memory and free disk space in KiB, and the numbers of descriptors and sockets in use."""
        return [
            self.resources.memory_used // 1024,
            (self.resources.disk_free or 0) // 1024,
            count_open_descriptors(),
            self.admission.sockets,
        ]

    def vhost(self, request: Request) -> VirtualHost:
        """Return the virtual host that a request names; `/` if it names none.

        :raises RequestRefused: if there is no virtual host of that name
        """
        return self.operator(request).vhost

    def operator(self, request: Request) -> Principal:
        """Return the operator as the principal of operations in the virtual host that a request names, or in `/`.

        :raises RequestRefused: if there is no virtual host of that name
        """
        topology = self.node.vhosts.get(request.vhost())
        if topology is None:
            raise RequestRefused(f"Virtual host '{name_text(request.vhost())}' does not exist")
        return Principal(topology, b"", None)


Action: TypeAlias = Callable[[Management, Request], Json]


VERBS: Final[dict[str, Action]] = {
    verb.__name__: verb
    for verb in (
        listing.list_queues,
        listing.list_exchanges,
        listing.list_bindings,
        listing.list_consumers,
        listing.list_connections,
        listing.list_channels,
        policies.set_policy,
        policies.clear_policy,
        policies.list_policies,
        policies.set_operator_policy,
        policies.clear_operator_policy,
        policies.list_operator_policies,
        users.add_user,
        users.delete_user,
        users.change_password,
        users.clear_password,
        users.authenticate_user,
        users.set_user_tags,
        users.list_users,
        users.set_user_limits,
        users.clear_user_limits,
        users.list_user_limits,
        permissions.set_permissions,
        permissions.clear_permissions,
        permissions.list_permissions,
        permissions.list_user_permissions,
        permissions.set_topic_permissions,
        permissions.clear_topic_permissions,
        permissions.list_topic_permissions,
        permissions.list_user_topic_permissions,
        virtual_hosts.add_vhost,
        virtual_hosts.update_vhost_metadata,
        virtual_hosts.set_vhost_tags,
        virtual_hosts.enable_vhost_protection_from_deletion,
        virtual_hosts.disable_vhost_protection_from_deletion,
        virtual_hosts.enable_vhost_deletion_protection,
        virtual_hosts.disable_vhost_deletion_protection,
        virtual_hosts.delete_vhost,
        virtual_hosts.list_vhosts,
        virtual_hosts.trace_on,
        virtual_hosts.trace_off,
        virtual_hosts.set_vhost_limits,
        virtual_hosts.clear_vhost_limits,
        virtual_hosts.list_vhost_limits,
        runtime_parameters.set_parameter,
        runtime_parameters.clear_parameter,
        runtime_parameters.list_parameters,
        runtime_parameters.set_global_parameter,
        runtime_parameters.clear_global_parameter,
        runtime_parameters.list_global_parameters,
        runtime_parameters.set_cluster_name,
        shovels.shovel_status,
        shovels.delete_shovel,
        shovels.restart_shovel,
        definitions.export_definitions,
        definitions.import_definitions,
        operations.purge_queue,
        operations.delete_queue,
        operations.close_connection,
        operations.close_all_connections,
        operations.close_all_user_connections,
        operations.set_vm_memory_high_watermark,
        operations.set_disk_free_limit,
        client_service.suspend_listeners,
        client_service.resume_listeners,
        client_service.stop_app,
        client_service.start_app,
        client_service.restart_vhost,
        client_service.rotate_logs,
        operations.shutdown,
        operations.stop,
        health.ping,
        health.status,
        health.check_running,
        health.await_startup,
        health.wait,
        health.alarms,
        health.check_local_alarms,
        health.listeners,
        health.check_port_connectivity,
        health.list_unresponsive_queues,
        health.set_log_level,
        health.environment,
        health.cluster_status,
        diagnostics.version,
        diagnostics.server_version,
        diagnostics.report,
        diagnostics.list_feature_flags,
        diagnostics.enable_feature_flag,
        diagnostics.list_deprecated_features,
        diagnostics.check_if_any_deprecated_features_are_used,
        diagnostics.list_node_auth_attempt_stats,
        diagnostics.check_alarms,
        diagnostics.check_virtual_hosts,
        diagnostics.check_if_node_is_quorum_critical,
        diagnostics.check_port_listener,
        diagnostics.check_protocol_listener,
        diagnostics.is_running,
        diagnostics.is_booting,
        diagnostics.node_health_check,
        diagnostics.hash_password,
        diagnostics.force_gc,
        diagnostics.set_permissions_globally,
    )
}
