"""Reliable messaging for Python on AMQP 0-9-1: `App`, typed messages, and errors that say what became of them."""

from warren.command.logs import JsonLines
from warren.sdk.app import App
from warren.sdk.batches import Outcomes
from warren.sdk.blocking import HeldMessage, Sync
from warren.sdk.breaker import CircuitBreaker
from warren.sdk.capture import Capture, CaptureStatistics
from warren.sdk.clock import SystemClock
from warren.sdk.codec import MessageOptions
from warren.sdk.consumer import Mode, Subscription
from warren.sdk.delivery import Delivery, current_delivery
from warren.sdk.depends import Depends, Header
from warren.sdk.endpoint import HandlerStatistics
from warren.sdk.errors import (
    Ack,
    BatchError,
    CallError,
    CallTimeout,
    ConfigError,
    DeadLetter,
    Fault,
    Nacked,
    NoServer,
    PublishError,
    PublishTimeout,
    RemoteError,
    Requeue,
    RetryLater,
    TopologyMismatch,
    TransactionError,
    TransactionFailed,
    TransactionUnknown,
    TransportUnavailable,
    Undecodable,
    Unroutable,
    WarrenError,
)
from warren.sdk.fetching import HeldDelivery
from warren.sdk.many import BatchOptions
from warren.sdk.messages import Command, Event, Message, Request, Scatter
from warren.sdk.outgoing import Outgoing
from warren.sdk.probe import HealthProbe
from warren.sdk.protocols import (
    Clock,
    Component,
    DelayBackend,
    HandleMiddleware,
    Once,
    PublishMiddleware,
    RetryPolicy,
    Timer,
)
from warren.sdk.publisher import PublisherStatistics
from warren.sdk.report import Failure, PublishReport
from warren.sdk.retry import Retry
from warren.sdk.rpc.caller import CallStatistics, ReplyMode
from warren.sdk.rpc.gathering import Answered, Gathered, Gathering
from warren.sdk.states import Health, State
from warren.sdk.statistics import Statistics
from warren.sdk.telemetry import Telemetry
from warren.sdk.topology import DEAD_LETTER_EXCHANGE, Binding, Declarable, Exchange, Queue
from warren.sdk.transaction import Transaction
from warren.sdk.workers import ConsumerStatistics

__all__ = [
    "DEAD_LETTER_EXCHANGE",
    "Ack",
    "Answered",
    "App",
    "BatchError",
    "BatchOptions",
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
    "ConsumerStatistics",
    "DeadLetter",
    "Declarable",
    "DelayBackend",
    "Delivery",
    "Depends",
    "Event",
    "Exchange",
    "Failure",
    "Fault",
    "Gathered",
    "Gathering",
    "HandleMiddleware",
    "HandlerStatistics",
    "Header",
    "Health",
    "HealthProbe",
    "HeldDelivery",
    "HeldMessage",
    "JsonLines",
    "Message",
    "MessageOptions",
    "Mode",
    "Nacked",
    "NoServer",
    "Once",
    "Outcomes",
    "Outgoing",
    "PublishError",
    "PublishMiddleware",
    "PublishReport",
    "PublishTimeout",
    "PublisherStatistics",
    "Queue",
    "RemoteError",
    "ReplyMode",
    "Request",
    "Requeue",
    "Retry",
    "RetryLater",
    "RetryPolicy",
    "Scatter",
    "State",
    "Statistics",
    "Subscription",
    "Sync",
    "SystemClock",
    "Telemetry",
    "Timer",
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
