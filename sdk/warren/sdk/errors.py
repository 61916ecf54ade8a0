"""Errors of the SDK in one class hierarchy; each error has the outcome of its message, and whether a retry can help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin, overload

from warren.core.documentation_links import documentation_reference
from warren.core.durations import Duration
from warren.sdk.exception_text import exception_text
from warren.sdk.keywords import describe_unknown_class_keyword

if TYPE_CHECKING:
    from warren.sdk.publish.report import PublishReport
    from warren.sdk.topology.mismatch import Difference

MessageOutcome = Literal["not_sent", "refused", "unknown"]
"""Outcome of a message: `not_sent`, the broker did not receive it; `refused`, the broker received it and no queue has it;
`unknown`, it may have arrived, and another attempt with the same message id may create a duplicate."""


class WarrenError(Exception):
    """Base class of all errors of the SDK.

    :ivar retryable: the same call may succeed later, without a change of code or configuration.
    :ivar outcome: outcome of the message: `not_sent`, `refused` (no queue has it) or `unknown` (it may have arrived).
    :ivar exit_status: exit status of a command that prints the error and ends (see `warren.core.errors.ExitStatus`).
    :ivar help_section: section of the troubleshooting page that explains the error; a traceback ends with a link to it.
        Empty for errors that applications define.
    """

    exit_status: ClassVar[int] = 1
    help_section: ClassVar[str] = "where-to-look-first"

    retryable: bool = False
    outcome: MessageOutcome = "not_sent"

    def __init__(
        self, text: str, *, retryable: bool | None = None, outcome: MessageOutcome | None = None
    ) -> None:
        super().__init__(text)
        if self.help_section:
            self.add_note(f"help: {documentation_reference('troubleshooting', self.help_section)}")
        if retryable is not None:
            self.retryable = retryable
        if outcome is not None:
            self.outcome = outcome


class ConfigError(WarrenError):
    """The program or its configuration is wrong; the text is one line with the necessary change."""

    help_section: ClassVar[str] = "errors-while-the-program-is-loaded"
    exit_status: ClassVar[int] = 2


class TransportUnavailable(WarrenError):
    """The broker could not be reached in time, or the connection was lost before the outcome was known."""

    help_section: ClassVar[str] = "the-app-does-not-connect"
    exit_status: ClassVar[int] = 74
    retryable: bool = True


class ConnectionRejected(TransportUnavailable):
    """The broker closed the connection before it was open: 403 ACCESS_REFUSED for a wrong user or password, 530
    NOT_ALLOWED for an unknown virtual host, or one on which the user has no permissions.

    It is not retryable, and the start of an App raises it after the first attempt. Only a 530 for a limit of connections,
    or for a virtual host that is down, is retryable.

    :ivar reply_code: the broker's code; 0 if the connection failed before the broker could send one.
    :ivar reply_text: the broker's text, without the name of the code.
    """

    retryable: bool = False

    def __init__(
        self, text: str, *, reply_code: int = 0, reply_text: str = "", retryable: bool = False
    ) -> None:
        super().__init__(text, retryable=retryable)
        self.reply_code = reply_code
        self.reply_text = reply_text


class TlsFailed(ConnectionRejected):
    """TLS to a port without it, no TLS to a port with it, or a certificate that cannot be verified."""


class TopologyMismatch(WarrenError):
    """An exchange, queue or binding is missing, or exists with other arguments (406 PRECONDITION_FAILED).

    The error is `retryable` if another connection holds the queue exclusively (405 RESOURCE_LOCKED, or an exclusive
    consumer). A start or a reconnect then waits, because it may be a dead connection of this App that the broker has not
    noticed yet.

    :ivar reply_code: the broker's code (403, 404, 405, 406), or 0.
    :ivar differences: the differing arguments, as far as they are known.
    """

    help_section: ClassVar[str] = "the-topology-differs"

    def __init__(
        self,
        text: str,
        *,
        reply_code: int = 0,
        differences: Sequence[Difference] = (),
        retryable: bool = False,
    ) -> None:
        super().__init__(text, retryable=retryable)
        self.reply_code = reply_code
        self.differences: tuple[Difference, ...] = tuple(differences)


class PublishError(WarrenError):
    """A publish that the broker did not confirm; also base class of more specific errors, such as `Nacked`.

    :ivar reply_code: code with which the broker refused it: 404 NOT_FOUND if its exchange does not exist, 403
        ACCESS_REFUSED, 312 NO_ROUTE (see `Unroutable`); 0 if there is none.
    """

    help_section: ClassVar[str] = "a-publish-fails"
    reply_code: int = 0


class Unroutable(PublishError):
    """The broker returned the message (`basic.return`, AMQP 0-9-1 section 1.8.3.9) because no queue matched.

    :ivar reply_code: 312 NO_ROUTE, or 313 NO_CONSUMERS.
    :ivar properties: the AMQP properties of the message, by their AMQP names, including `headers`.
    """

    help_section: ClassVar[str] = "no-queue-takes-routing-key-from-exchange"
    outcome: MessageOutcome = "refused"

    def __init__(
        self,
        *,
        reply_code: int,
        reply_text: str,
        exchange: str,
        routing_key: str,
        properties: Mapping[str, Any],
        body: bytes,
    ) -> None:
        super().__init__(
            f"no queue takes routing key {routing_key!r} from exchange {exchange!r} ({reply_code} {reply_text}):"
            " bind a queue, or name the audience of the event; an event that may have no listener has mandatory=False"
        )
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.body = body


class Nacked(PublishError):
    """The broker refused the message (`basic.nack`): a queue with `reject-publish` is full, or a disk failed."""

    help_section: ClassVar[str] = "the-broker-refused-the-message-a-queue-is-full-or-its-disk-failed"
    retryable: bool = True
    outcome: MessageOutcome = "refused"


class PublishTimeout(PublishError):
    """No confirm came within the deadline; `outcome` is `not_sent` or `unknown`."""

    help_section: ClassVar[str] = "no-confirm-came-within-the-deadline"
    retryable: bool = True
    outcome: MessageOutcome = "unknown"


class BatchError(PublishError):
    """Some messages of a bulk publish were not confirmed.

    :ivar report: contains these messages and their errors; `app.publish_again(report)` publishes them again.
    """

    outcome: MessageOutcome = "unknown"

    def __init__(self, report: PublishReport) -> None:
        first = report.failures[0]
        super().__init__(
            f"{len(report.failures)} of {report.total} messages were not confirmed;"
            f" the first is number {first.index}: {first.error}",
            retryable=all(failure.error.retryable for failure in report.failures),
        )
        self.report = report


class TransactionError(WarrenError):
    """A transaction without the broker's confirmation of its commit; base class of more specific errors."""

    help_section: ClassVar[str] = "a-publish-fails"


class TransactionFailed(TransactionError):
    """A transaction without effect: no message was published, none acknowledged."""

    retryable: bool = True


class TransactionUnknown(TransactionError):
    """The commit was sent and its outcome is unknown: all of it took effect, or nothing, or (rarely) a part.

    The SDK does not retry it, because that might do it twice. Check its effects; or repeat it with the same message ids
    if the consumers are idempotent.
    """

    outcome: MessageOutcome = "unknown"


class CallError(WarrenError):
    """A call without a reply of the request's reply type; base class of more specific errors, such as `CallTimeout`."""

    help_section: ClassVar[str] = "a-call-gets-no-answer"


class RemoteError(CallError):
    """The server replied with an error. A handler of a Request raises it to choose the error that the caller gets.

    :ivar code: a short name for programs to compare.
    :ivar details: any value that can be written as JSON.
    """

    help_section: ClassVar[str] = ""
    outcome: MessageOutcome = "refused"
    details: Any

    def __init__(self, code: str, message: str, *, details: Any = None, retryable: bool = False) -> None:
        super().__init__(f"{code}: {message}", retryable=retryable)
        self.code: str = code
        self.message: str = message
        self.details = details


Details = TypeVar("Details")


class Fault(RemoteError, Generic[Details]):
    """An error with a class that server and client share: `class SoldOut(Fault[Stock], code="sold_out", retryable=True)`.

    A request names it (`class GetQuote(Request[Quote], queue="quotes", faults=[SoldOut])`), a handler raises it
    (`raise SoldOut("none left", Stock(...))`), and the caller catches it, with the details decoded as `Details`. Without
    details: `class Closed(Fault[None], code="closed")`. A caller whose request does not name it gets a `RemoteError` with
    that code.
    """

    wire_code: ClassVar[str] = ""
    wire_retryable: ClassVar[bool] = False
    details: Details

    def __init_subclass__(
        cls, *, code: str | None = None, retryable: bool | None = None, **keywords: Any
    ) -> None:
        try:
            super().__init_subclass__(**keywords)
        except TypeError as error:
            if not keywords:
                raise
            raise ConfigError(describe_unknown_class_keyword(cls, keywords)) from error
        if code is not None:
            cls.wire_code = code
        if retryable is not None:
            cls.wire_retryable = retryable

    @overload
    def __init__(self: Fault[None], message: str, *, retryable: bool | None = ...) -> None: ...

    @overload
    def __init__(self, message: str, details: Details, *, retryable: bool | None = ...) -> None: ...

    def __init__(self, message: str, details: Any = None, *, retryable: bool | None = None) -> None:
        if not self.wire_code:
            raise ConfigError(
                f"{type(self).__name__} has no code: class {type(self).__name__}(Fault[...], code=...)"
            )
        retry = self.wire_retryable if retryable is None else retryable
        super().__init__(self.wire_code, message, details=details, retryable=retry)

    @classmethod
    def details_type(cls) -> Any:
        """Return the type of the details: `Stock` for a subclass of `Fault[Stock]`."""
        for base in cls.__mro__:
            for generic in base.__dict__.get("__orig_bases__", ()):
                if get_origin(generic) is Fault and not isinstance(get_args(generic)[0], TypeVar):
                    return get_args(generic)[0]
        return Any


class NoServer(CallError):
    """The broker returned the request as unroutable: its queue does not exist, or no queue is bound for it.

    Raised at once, not after the deadline.
    """

    retryable: bool = True
    outcome: MessageOutcome = "refused"


class CallTimeout(CallError):
    """No reply came within the deadline; the request may have been handled."""

    retryable: bool = True
    outcome: MessageOutcome = "unknown"


class ReplayStopped(WarrenError):
    """A replay of a stream ended before its end: the connection was lost (then it is retryable), or a handler failed and
    its reader has `on_error="stop"`.

    :ivar offset: offset at which another replay continues, that of the message that failed; None if the replay had not
        reached a message.
    """

    def __init__(self, text: str, offset: int | None, *, retryable: bool = False) -> None:
        super().__init__(text, retryable=retryable, outcome="unknown")
        self.offset: int | None = offset


class StreamRecreated(WarrenError):
    """A reader stopped, because its stream was deleted and declared anew since its position was stored: the offsets began
    at 0 again, and new messages below the position would be passed over. `on_recreated="first"` makes the reader begin with
    the first message of the new stream.

    :ivar stream: name of the stream.
    :ivar offset: the stored position, an offset of the former stream.
    """

    def __init__(self, text: str, stream: str, offset: int) -> None:
        super().__init__(text, retryable=False)
        self.stream: str = stream
        self.offset: int = offset


class HandlerOutcome(Exception):
    """Base class of the exceptions with which a handler (or `Once`) chooses the outcome of its message.

    They are not failures, and the message is not retried in this process.
    """

    counted_as: ClassVar[str]


class Requeue(HandlerOutcome):
    """Exception by which a handler returns its message to the queue, for any consumer.

    This counts against the delivery limit of the queue.
    """

    counted_as = "requeued"


class Ack(HandlerOutcome):
    """Exception by which a handler has its message acknowledged at once; a Request gets no reply."""

    counted_as = "acknowledged"


class RetryLater(HandlerOutcome):
    """Exception by which a handler has its message delivered again after a delay.

    The delay is `after`, or without it the next one of the retry policy. With `after` the number of redeliveries
    has no limit; `delivery.attempt` counts them. Without it, a message for which the policy has no delay left is
    dead-lettered.

    :param after: a `timedelta`, seconds, or a text such as `5s`.
    """

    counted_as = "delayed"

    def __init__(self, after: Duration | None = None) -> None:
        super().__init__("the handler asked for a later retry")
        self.after: Duration | None = after


class Undecodable(HandlerOutcome):
    """Exception for a message that does not fit the type of its handler; the message is dead-lettered at once.

    :ivar error: the reason.
    """

    counted_as = "dead_lettered"

    def __init__(self, error: ValueError) -> None:
        super().__init__(exception_text(error))
        self.error: ValueError = error


class UnknownContentType(ValueError):
    """The `content_type` of the message is not one from which the handler's type can be decoded."""


class UnknownContentEncoding(ValueError):
    """The `content_encoding` of the message, or the character set of its `content_type`, is not one that Warren decodes."""


class DeadLetter(HandlerOutcome):
    """Exception by which a handler dead-letters its message at once.

    :param reason: text that the dead letter gets as the reason.
    """

    counted_as = "dead_lettered"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


__all__: Sequence[str] = [
    "Ack",
    "BatchError",
    "CallError",
    "CallTimeout",
    "ConfigError",
    "ConnectionRejected",
    "DeadLetter",
    "Fault",
    "HandlerOutcome",
    "MessageOutcome",
    "Nacked",
    "NoServer",
    "PublishError",
    "PublishTimeout",
    "RemoteError",
    "Requeue",
    "RetryLater",
    "TlsFailed",
    "TopologyMismatch",
    "TransactionError",
    "TransactionFailed",
    "TransactionUnknown",
    "TransportUnavailable",
    "Undecodable",
    "UnknownContentEncoding",
    "UnknownContentType",
    "Unroutable",
    "WarrenError",
]
