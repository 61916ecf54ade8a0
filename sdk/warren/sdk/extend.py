"""Extension points: the names for code that builds on the SDK (patterns, middlewares, stores, command lines).

`warren.sdk` has the names for applications; this module has the names for those who extend it. Everything below
`warren.sdk` that is neither in these two modules nor in `warren.sdk.planning` is internal and may change in any release.
"""

from __future__ import annotations

from warren.sdk.app.asyncapi_changes import ContractChange, compare_asyncapi
from warren.sdk.app.asyncapi_document import asyncapi_document
from warren.sdk.app.asyncapi_page import asyncapi_page
from warren.sdk.app.embedded_broker import EmbeddedBroker, Storage
from warren.sdk.app.health_probe import ProbeServer
from warren.sdk.app.inclusion import IncludedComponent, NotIncluded, not_included
from warren.sdk.app.middleware import CallNext
from warren.sdk.app.serve import StopRequest, serve
from warren.sdk.app.testing_hooks import override_for_test
from warren.sdk.choices import check_choice, check_number, check_whole_number
from warren.sdk.clock import AppClock, SystemClock, poll_at
from warren.sdk.consume.dead_letters import (
    DEAD_ERROR,
    DEAD_FIRST_TIME,
    DEAD_QUEUE,
    DEAD_REASON,
    DEAD_TIME,
    DEATHS,
)
from warren.sdk.consume.delivery import (
    ATTEMPT,
    DEADLINE,
    FIRST_PUBLISHED,
    Delivery,
    count_in,
    current_delivery,
)
from warren.sdk.consume.handlers.decorator_arguments import check_decorated, check_idempotency
from warren.sdk.consume.handlers.signature import check_async
from warren.sdk.consume.retry import check_retry_policy
from warren.sdk.consume.streams.last_chunk import LastChunk, read_last_chunk
from warren.sdk.consume.task_ends import ends_task
from warren.sdk.durations import Duration, duration, milliseconds, optional_duration, seconds
from warren.sdk.errors import HandlerOutcome, MessageOutcome
from warren.sdk.exception_text import describe_exception, exception_text
from warren.sdk.messages.codec import MessageOptions, decode, encode
from warren.sdk.messages.forwarding import ORIGIN_EXCHANGE, ORIGIN_KEY, Address, forwarded, origin
from warren.sdk.messages.message_ids import uuid7
from warren.sdk.messages.type_codec import TypeCodec, as_json_text, from_json_text, type_codec
from warren.sdk.messages.types import RequestMessage, by_wire_name, wire_names
from warren.sdk.messages.validation_errors import format_validation_error
from warren.sdk.protocols import (
    Clock,
    Component,
    DelayBackend,
    HandleMiddleware,
    Idempotency,
    PollingClock,
    PublishMiddleware,
    RetryPolicy,
    Timer,
)
from warren.sdk.publish.bulk_publish import PUBLISH_SECONDS
from warren.sdk.publish.operations import CALL_SECONDS, Reliability
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.topology.declarable import Declarable
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import translate_errors
from warren.sdk.transport.session import Session

__all__ = [
    "ATTEMPT",
    "CALL_SECONDS",
    "DEADLINE",
    "DEAD_ERROR",
    "DEAD_FIRST_TIME",
    "DEAD_QUEUE",
    "DEAD_REASON",
    "DEAD_TIME",
    "DEATHS",
    "FIRST_PUBLISHED",
    "ORIGIN_EXCHANGE",
    "ORIGIN_KEY",
    "PUBLISH_SECONDS",
    "Address",
    "AppClock",
    "CallNext",
    "Clock",
    "Component",
    "ContractChange",
    "DataChannel",
    "Declarable",
    "DelayBackend",
    "Delivery",
    "Duration",
    "EmbeddedBroker",
    "HandleMiddleware",
    "HandlerOutcome",
    "Idempotency",
    "IncludedComponent",
    "LastChunk",
    "MessageOptions",
    "MessageOutcome",
    "NotIncluded",
    "Outgoing",
    "PollingClock",
    "ProbeServer",
    "PublishMiddleware",
    "Reliability",
    "RequestMessage",
    "RetryPolicy",
    "Session",
    "StopRequest",
    "Storage",
    "SystemClock",
    "Timer",
    "TypeCodec",
    "as_json_text",
    "asyncapi_document",
    "asyncapi_page",
    "by_wire_name",
    "check_async",
    "check_choice",
    "check_decorated",
    "check_idempotency",
    "check_number",
    "check_retry_policy",
    "check_whole_number",
    "compare_asyncapi",
    "count_in",
    "current_delivery",
    "decode",
    "describe_exception",
    "duration",
    "encode",
    "ends_task",
    "exception_text",
    "format_validation_error",
    "forwarded",
    "from_json_text",
    "milliseconds",
    "not_included",
    "optional_duration",
    "origin",
    "override_for_test",
    "poll_at",
    "read_last_chunk",
    "seconds",
    "serve",
    "translate_errors",
    "type_codec",
    "uuid7",
    "wire_names",
]
