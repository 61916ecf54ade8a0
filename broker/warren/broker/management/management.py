"""Management of a broker: performs verbs, the named requests of operators such as `list_queues`.

Requests arrive over the control socket.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from warren.broker.configuration.config import BrokerConfig
from warren.broker.connection.admission import Admission
from warren.broker.connection.broker_node import BrokerNode
from warren.broker.connection.descriptor_budget import DescriptorBudget
from warren.broker.disk_delays import DiskDelayMonitor
from warren.broker.management.consumer_utilisation import ConsumerUtilisation
from warren.broker.management.definitions_export import BrokerMetadata
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json, Request, RequestRefused
from warren.broker.management.verbs import (
    definitions,
    health,
    listing,
    operations,
    permissions,
    policies,
    runtime_parameters,
    users,
    virtual_hosts,
)
from warren.broker.model.policy.runtime_parameters import RuntimeParameters
from warren.broker.model.vhost.vhost import VirtualHost
from warren.broker.resource_alarms import ResourceMonitor
from warren.broker.stall_monitor import StallMonitor
from warren.core.operating_system.descriptors import count_open_descriptors

logger = logging.getLogger(__name__)

READ_ONLY_PREFIXES: Final = (
    "list_",
    "check_",
    "export_",
    "ping",
    "status",
    "cluster_status",
    "environment",
    "listeners",
    "alarms",
    "authenticate_user",
    "await_startup",
)
"""Name prefixes of the verbs that change nothing; requests for all other verbs are logged."""


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
        listeners: Callable[[], list[str]],
    ) -> None:
        """Create the management interface of a started broker.

        :param stalls: monitor of the event loop; None if the broker runs on a loop that measures nothing
        :param disk_delays: monitor of the disk; None without a data folder
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
        self.listeners = listeners
        self.on_shutdown: Callable[[], None] | None = None
        """Callback that stops the broker; None if only the embedding program can stop it."""
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
        definitions = self.node.definitions
        before = definitions.submitted if definitions is not None else 0
        result = action(self, request)
        if inspect.isawaitable(result):
            result = await result
        if not verb.startswith(READ_ONLY_PREFIXES):
            logger.info("event=management.verb_performed verb=%s arguments=%s", verb, request.loggable())
        if definitions is not None and definitions.submitted != before:
            await definitions.flush()
        return result

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
        topology = self.node.vhosts.get(request.vhost())
        if topology is None:
            raise RequestRefused(f"Virtual host '{name_text(request.vhost())}' does not exist")
        return topology.vhost


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
        virtual_hosts.delete_vhost,
        virtual_hosts.list_vhosts,
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
        definitions.export_definitions,
        definitions.import_definitions,
        operations.purge_queue,
        operations.delete_queue,
        operations.close_connection,
        operations.close_all_connections,
        operations.close_all_user_connections,
        operations.set_vm_memory_high_watermark,
        operations.set_disk_free_limit,
        operations.shutdown,
        operations.stop,
        health.ping,
        health.status,
        health.check_running,
        health.await_startup,
        health.alarms,
        health.check_local_alarms,
        health.listeners,
        health.check_port_connectivity,
        health.list_unresponsive_queues,
        health.set_log_level,
        health.environment,
        health.cluster_status,
    )
}
