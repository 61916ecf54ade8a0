"""Reliable messaging for Python on AMQP 0-9-1: `App`, typed messages, and errors that report the outcome of a message.

Public modules: `warren.sdk` for applications, `warren.sdk.extend` for code that builds on the SDK, and
`warren.sdk.planning` for topology plans. All other modules and packages below `warren.sdk` are internal.
"""

from typing import TYPE_CHECKING

from warren.core.log_output import JsonLines, TextLines
from warren.core.misplaced_names import raise_missing_name
from warren.sdk.app.app import App
from warren.sdk.app.blocking import Sync, SyncFetchedMessage
from warren.sdk.app.health_probe import HealthProbe
from warren.sdk.app.router import Router
from warren.sdk.app.running_router import RunningRouter
from warren.sdk.app.settings import StartMode
from warren.sdk.app.state import Health, State
from warren.sdk.app.statistics import Statistics
from warren.sdk.capture import Capture, CaptureStatistics
from warren.sdk.clock import SystemClock
from warren.sdk.consume.batches import BatchResult
from warren.sdk.consume.circuit_breaker import CircuitBreaker
from warren.sdk.consume.delivery import Delivery, current_delivery
from warren.sdk.consume.dependencies import Depends, Header
from warren.sdk.consume.get import FetchedMessage
from warren.sdk.consume.handler_report import HandlerStatistics
from warren.sdk.consume.handler_tasks import ConsumerStatistics
from warren.sdk.consume.retry import Retry
from warren.sdk.consume.streams.reader_options import (
    OnRecreated,
    OnStreamError,
    StreamHandlerOptions,
    StreamOffset,
)
from warren.sdk.consume.streams.replay import ReplayReport
from warren.sdk.consume.streams.stream_subscription import StreamSubscription
from warren.sdk.consume.subscription import Mode, Subscription
from warren.sdk.durations import Duration
from warren.sdk.errors import (
    Ack,
    BatchError,
    CallError,
    CallTimeout,
    ConfigError,
    ConnectionRejected,
    DeadLetter,
    Fault,
    Nacked,
    NoServer,
    PublishError,
    PublishTimeout,
    RemoteError,
    ReplayStopped,
    Requeue,
    RetryLater,
    StreamRecreated,
    TlsFailed,
    TopologyMismatch,
    TransactionError,
    TransactionFailed,
    TransactionUnknown,
    TransportUnavailable,
    Undecodable,
    Unroutable,
    WarrenError,
)
from warren.sdk.messages.codec import MessageOptions
from warren.sdk.messages.message_properties import PropertyOptions
from warren.sdk.messages.types import Command, Event, Message, Request, Scatter
from warren.sdk.protocols import (
    Clock,
    Component,
    DelayBackend,
    HandleMiddleware,
    Idempotency,
    PublishMiddleware,
    RetryPolicy,
    Timer,
)
from warren.sdk.publish.bulk_publish import BatchOptions
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.publish.publisher_confirms import PublisherStatistics
from warren.sdk.publish.report import Failure, PublishReport
from warren.sdk.publish.transaction import Transaction
from warren.sdk.rpc.caller import CallStatistics, ReplyMode
from warren.sdk.rpc.scatter_gather import GatherCall, GatheredReply, GatherResult
from warren.sdk.telemetry import Telemetry
from warren.sdk.topology.binding import Binding
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.queue import DEAD_LETTER_EXCHANGE, Queue

__all__ = [
    "DEAD_LETTER_EXCHANGE",
    "Ack",
    "App",
    "BatchError",
    "BatchOptions",
    "BatchResult",
    "Binding",
    "CallError",
    "CallStatistics",
    "CallTimeout",
    "Capture",
    "CaptureStatistics",
    "CircuitBreaker",
    "Clock",
    "Command",
    "Component",
    "ConfigError",
    "ConnectionRejected",
    "ConsumerStatistics",
    "DeadLetter",
    "Declarable",
    "DelayBackend",
    "Delivery",
    "Depends",
    "Duration",
    "Event",
    "Exchange",
    "Failure",
    "Fault",
    "FetchedMessage",
    "GatherCall",
    "GatherResult",
    "GatheredReply",
    "HandleMiddleware",
    "HandlerStatistics",
    "Header",
    "Health",
    "HealthProbe",
    "Idempotency",
    "JsonLines",
    "Message",
    "MessageOptions",
    "Mode",
    "Nacked",
    "NoServer",
    "OnRecreated",
    "OnStreamError",
    "Outgoing",
    "PropertyOptions",
    "PublishError",
    "PublishMiddleware",
    "PublishReport",
    "PublishTimeout",
    "PublisherStatistics",
    "Queue",
    "RemoteError",
    "ReplayReport",
    "ReplayStopped",
    "ReplyMode",
    "Request",
    "Requeue",
    "Retry",
    "RetryLater",
    "RetryPolicy",
    "Router",
    "RunningRouter",
    "Scatter",
    "StartMode",
    "State",
    "Statistics",
    "StreamHandlerOptions",
    "StreamOffset",
    "StreamRecreated",
    "StreamSubscription",
    "Subscription",
    "Sync",
    "SyncFetchedMessage",
    "SystemClock",
    "Telemetry",
    "TextLines",
    "Timer",
    "TlsFailed",
    "TopologyMismatch",
    "Transaction",
    "TransactionError",
    "TransactionFailed",
    "TransactionUnknown",
    "TransportUnavailable",
    "Undecodable",
    "Unroutable",
    "WarrenError",
    "current_delivery",
]

if not TYPE_CHECKING:
    # Type checkers must not see it: with it, they would accept any name.
    def __getattr__(name: str) -> object:
        raise_missing_name(__name__, "warren.patterns", name)
