"""Parts of a running broker that operators' requests read and change."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from warren.broker.access.audit_log import AuditLog
from warren.broker.configuration.config import BrokerConfig
from warren.broker.connection.admission import Admission
from warren.broker.connection.broker_node import BrokerNode
from warren.broker.connection.descriptor_budget import DescriptorBudget
from warren.broker.connection.listener import Listener
from warren.broker.disk_delays import DiskDelayMonitor
from warren.broker.management.consumer_utilisation import ConsumerUtilisation
from warren.broker.management.defined_shovels import DefinedShovels
from warren.broker.management.definitions_export import BrokerMetadata
from warren.broker.model.capture.message_spans import StepQueue
from warren.broker.model.memory_budget import MemoryBudget
from warren.broker.model.policy.runtime_parameters import RuntimeParameters
from warren.broker.resource_alarms import ResourceMonitor
from warren.broker.stall_monitor import StallMonitor


@dataclass(kw_only=True, eq=False)
class Management:
    """Parts of a started broker, for the HTTP API and the control socket.

    :ivar listener: listener for AMQP clients.
    :ivar listeners: function that returns the addresses that accept connections, as text for people.
    :ivar stalls: monitor of the event loop; None if the broker runs on a loop that measures nothing.
    :ivar disk_delays: monitor of the disk; None without a data folder.
    :ivar memory: guard of the memory that messages take; None without a data folder.
    :ivar audit: log of the changes; None if they are not recorded.
    :ivar spans: queue of message spans to export, with its counters; None if spans are off.
    :ivar on_shutdown: callback that stops the broker; None if only the embedding program can stop it.
    :ivar is_stopped: True from the verb `stop_app` to `start_app`: no client is connected, nor can connect.
    :ivar started: time at which the broker started, of `time.monotonic()`.
    """

    node: BrokerNode
    parameters: RuntimeParameters
    metadata: BrokerMetadata
    resources: ResourceMonitor
    config: BrokerConfig
    descriptors: DescriptorBudget
    admission: Admission
    listener: Listener
    listeners: Callable[[], list[str]]
    utilisation: ConsumerUtilisation
    shovels: DefinedShovels
    stalls: StallMonitor | None
    disk_delays: DiskDelayMonitor | None
    memory: MemoryBudget | None
    audit: AuditLog | None
    spans: StepQueue | None
    on_shutdown: Callable[[], None] | None
    is_stopped: bool = False
    started: float = field(default_factory=time.monotonic)
