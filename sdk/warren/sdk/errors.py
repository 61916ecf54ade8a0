"""The SDK's errors: one tree, each saying whether trying again can help and what became of the message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin, overload

if TYPE_CHECKING:
    from warren.sdk.publish.report import PublishReport
    from warren.sdk.topology.mismatch import Difference

Outcome = Literal["not_sent", "refused", "unknown"]
"""What became of the message: `not_sent`, the broker never saw it; `refused`, the broker saw it and no queue has it;
`unknown`, it may have arrived, and a second try with the same message id may make a duplicate."""


class WarrenError(Exception):
    """Every error that the SDK raises.

    :ivar retryable: whether the same call may succeed later without a change of code or configuration.
    :ivar outcome: see `Outcome`.
    :ivar exit_status: what a command ends with that cannot do better than to print it (see `warren.core.errors.Exit`).
    """

    exit_status: ClassVar[int] = 1

    retryable: bool = False
    outcome: Outcome = "not_sent"

    def __init__(self, text: str, *, retryable: bool | None = None, outcome: Outcome | None = None) -> None:
        super().__init__(text)
        if retryable is not None:
            self.retryable = retryable
        if outcome is not None:
            self.outcome = outcome


class ConfigError(WarrenError):
    """The program or its configuration is wrong; the text is one line that says what to change."""

    exit_status: ClassVar[int] = 2


class TransportUnavailable(WarrenError):
    """There is no connection to the broker, and none came back within the deadline."""

    exit_status: ClassVar[int] = 74
    retryable: bool = True


class TopologyMismatch(WarrenError):
    """An exchange, queue or binding is missing, or exists with other arguments (406 PRECONDITION_FAILED).

    What another connection holds exclusively (405 RESOURCE_LOCKED, or an exclusive consumer) is `retryable`: a start or
    a reconnect waits for it, because a connection of our own may be dead and not yet noticed by the broker.

    :ivar reply_code: the broker's code (403, 404, 405, 406), or 0.
    :ivar differences: what differs, argument by argument, where it is known.
    """

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
    """A publish did not end in the broker's confirm."""


class Unroutable(PublishError):
    """No queue matched: the broker returned the message (`basic.return`, AMQP 0-9-1 section 1.8.3.9).

    :ivar reply_code: 312 NO_ROUTE, or 313 NO_CONSUMERS.
    :ivar properties: the AMQP properties that were set, by their AMQP names; `headers` among them.
    """

    outcome: Outcome = "refused"

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
            " bind a queue, or name the audience of the event"
        )
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.body = body


class Nacked(PublishError):
    """The broker refused the message (`basic.nack`): a queue is full with `reject-publish`, or its disk failed."""

    retryable: bool = True
    outcome: Outcome = "refused"


class PublishTimeout(PublishError):
    """No confirm came within the deadline; `outcome` says whether the message had been sent."""

    retryable: bool = True
    outcome: Outcome = "unknown"


class BatchError(PublishError):
    """Some messages of `publish_many` were not confirmed.

    :ivar report: says which, and why each; publish again only those.
    """

    outcome: Outcome = "unknown"

    def __init__(self, report: PublishReport) -> None:
        first = report.failures[0]
        super().__init__(
            f"{len(report.failures)} of {report.total} messages were not confirmed;"
            f" the first is number {first.index}: {first.error}",
            retryable=all(failure.error.retryable for failure in report.failures),
        )
        self.report = report


class TransactionError(WarrenError):
    """A transaction did not end in the broker's commit."""


class TransactionFailed(TransactionError):
    """Nothing of the transaction took place: no message was published, none acknowledged."""

    retryable: bool = True


class TransactionUnknown(TransactionError):
    """The commit was sent, and its outcome is not known: all of it took place, or none, or (rarely) a part.

    It is never tried again by itself, which might do it twice. Look at what it should have changed; or repeat it with the
    same message ids, where the consumers are idempotent.
    """

    outcome: Outcome = "unknown"


class CallError(WarrenError):
    """A call did not end in a reply of its type."""


class RemoteError(CallError):
    """The server answered with an error. A handler of a Request raises it to choose what the caller sees.

    :ivar code: a short name that programs can compare.
    :ivar details: anything that JSON can carry.
    """

    outcome: Outcome = "refused"
    details: Any

    def __init__(self, code: str, message: str, *, details: Any = None, retryable: bool = False) -> None:
        super().__init__(f"{code}: {message}", retryable=retryable)
        self.code: str = code
        self.message: str = message
        self.details = details


Details = TypeVar("Details")


class Fault(RemoteError, Generic[Details]):
    """An error that both sides know by its class: `class SoldOut(Fault[Stock], code="sold_out", retryable=True)`.

    A request names it (`class GetQuote(Request[Quote], queue="quotes", faults=[SoldOut])`), a handler raises it
    (`raise SoldOut("none left", Stock(...))`), and the caller catches it, with the details as `Details` again. Without
    details: `class Closed(Fault[None], code="closed")`. To a caller whose request does not name it, it is a
    `RemoteError` of that code.
    """

    wire_code: ClassVar[str] = ""
    wire_retryable: ClassVar[bool] = False
    details: Details

    def __init_subclass__(cls, *, code: str | None = None, retryable: bool | None = None) -> None:
        super().__init_subclass__()
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
        """The type of its details, as the class says it."""
        for base in cls.__mro__:
            for generic in base.__dict__.get("__orig_bases__", ()):
                if get_origin(generic) is Fault and not isinstance(get_args(generic)[0], TypeVar):
                    return get_args(generic)[0]
        return Any


class NoServer(CallError):
    """The request's queue does not exist: nobody serves it. Raised at once, not after the deadline."""

    retryable: bool = True
    outcome: Outcome = "refused"


class CallTimeout(CallError):
    """No reply came within the deadline; the request may have been handled."""

    retryable: bool = True
    outcome: Outcome = "unknown"


class HandlerOutcome(Exception):
    """What a handler (or `Once`) raises to choose the end of its message; it is no failure and is not retried."""

    counted_as: ClassVar[str]


class Requeue(HandlerOutcome):
    """Give the message back to its queue, for any consumer; it counts against the queue's delivery limit."""

    counted_as = "requeued"


class Ack(HandlerOutcome):
    """Acknowledge the message without more ado; a Request remains without an answer."""

    counted_as = "acknowledged"


class RetryLater(HandlerOutcome):
    """Bring the message back later: after the policy's next delay, or after so long.

    With a delay of its own it has no bound; `delivery.attempt` counts. Where the policy has no delay left, the message
    is dead-lettered.

    :param after: a `timedelta`, seconds, or a text such as `5s`.
    """

    counted_as = "delayed"

    def __init__(self, after: timedelta | float | str | None = None) -> None:
        super().__init__("the handler asked for a later retry")
        self.after: timedelta | float | str | None = after


class Undecodable(HandlerOutcome):
    """The message is not what its handler takes; it is dead-lettered at once.

    :ivar error: says what is wrong.
    """

    counted_as = "dead_lettered"

    def __init__(self, error: ValueError) -> None:
        super().__init__(str(error))
        self.error: ValueError = error


class UnknownContentType(ValueError):
    """The message's `content_type` is none that the handler's type can be read from."""


class DeadLetter(HandlerOutcome):
    """Dead-letter the message at once, with this reason."""

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
    "DeadLetter",
    "Fault",
    "HandlerOutcome",
    "Nacked",
    "NoServer",
    "Outcome",
    "PublishError",
    "PublishTimeout",
    "RemoteError",
    "Requeue",
    "RetryLater",
    "TopologyMismatch",
    "TransactionError",
    "TransactionFailed",
    "TransactionUnknown",
    "TransportUnavailable",
    "Undecodable",
    "UnknownContentType",
    "Unroutable",
    "WarrenError",
]
