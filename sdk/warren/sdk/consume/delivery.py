"""Delivery: a received message with its properties, headers and origin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from time import time
from typing import Any, Final, Protocol

from warren.sdk.consume.message_identity import Identity, fingerprint
from warren.sdk.errors import Undecodable
from warren.sdk.messages.message_ids import milliseconds_of
from warren.wire import field_tables
from warren.wire.delivery_scanner import decode_content_header, decode_deliver, is_utf8

ATTEMPT = "warren-attempt"
"""Header with the number of the attempt: each delayed retry adds one. Missing means 1."""
FIRST_PUBLISHED = "warren-first-published"
"""Header with the Unix time in milliseconds of the first publish, if the publisher passed a `message_id`."""
REPUBLISHED = "warren-republished"
STREAM_OFFSET = "x-stream-offset"
DEADLINE = "warren-deadline"
"""Header of a forwarded or delayed request: Unix time in milliseconds at which its caller stops waiting for the reply."""
CAUSE = "warren-cause"
"""Header with the id of the message whose handler published this one."""
RETURN_TOKEN = "warren-token"
"""Header with a number that distinguishes returned messages with the same message id. Set only while another publish
with the same message id is in flight on the channel."""

LARGEST_COUNT: Final = 2**31 - 1
"""Largest number that a header which counts something may have; each client can write any number of 64 bits."""


def count_in(value: object, default: int) -> int:
    """Return the value of a header that counts something, such as `warren-attempt`.

    :param default: result for a value that is no count: not a whole number, negative, or above 2^31-1.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT:
        return int(value)
    return default


class Handling(Protocol):
    """State of the handling of a delivery; `Job` implements it.

    :ivar pausing: the handling waits for the time of the next attempt.
    :ivar stopping: the App stops: the handling must not begin to wait for another attempt.
    """

    pausing: bool
    stopping: bool

    @property
    def orphaned(self) -> bool:
        """True while there is no channel for the settlement: the broker delivers the message again."""
        ...

    @property
    def lost(self) -> bool:
        """True once the channel on which the message arrived was lost."""
        ...


class Delivery:
    """A received message. A handler gets it through a parameter that is annotated with `Delivery`.

    :ivar queue: name of the queue that the message was consumed from.
    :ivar redelivered: the broker may have delivered the message before.
    :ivar properties: the AMQP properties that the publisher set, by their AMQP names, without the headers; `timestamp` is in
        Unix seconds.
    :ivar replayed: `app.replay_stream` delivers the message, to a handler that may have handled it before.
    :ivar handling: state of the handling of this delivery; None unless it was consumed by a handler of the App.
    :ivar text_error: description of the first field that is not valid UTF-8, or None. The SDK dead-letters such a message
        and does not call its handler.
    """

    __slots__ = (
        "_deadline",
        "_headers",
        "_original",
        "_table",
        "body",
        "exchange",
        "handling",
        "properties",
        "queue",
        "redelivered",
        "replayed",
        "routing_key",
        "text_error",
    )

    def __init__(
        self,
        body: bytes,
        exchange: str,
        routing_key: str,
        queue: str,
        redelivered: bool,
        headers: Mapping[str, Any] | None,
        properties: Mapping[str, Any],
        *,
        table: bytes = b"",
    ) -> None:
        self.body: bytes = body
        self.exchange: str = exchange
        self.routing_key: str = routing_key
        self.queue: str = queue
        self.redelivered: bool = redelivered
        self.properties: Mapping[str, Any] = properties
        self.replayed: bool = False
        self.text_error: str | None = None
        self.handling: Handling | None = None
        self._deadline: float | None = None
        self._headers = headers
        self._table = table
        self._original: Delivery | None = None

    @classmethod
    def from_frames(cls, method: bytes, header: bytes, body: bytes, queue: str) -> tuple[int, Delivery]:
        """Decode a delivery from the payloads of its method, header and body
        frames; return the delivery tag and the delivery.

        :param queue: name of the queue that it was consumed from.
        :raises StreamError: if a payload is truncated.
        """
        tag, redelivered, exchange, routing_key = decode_deliver(method)
        properties, table = decode_content_header(header)
        delivery = cls(body, exchange, routing_key, queue, redelivered, None, properties, table=table)
        if not (exchange.isascii() and routing_key.isascii()):
            delivery._check("exchange", exchange)
            delivery._check("routing key", routing_key)
        for name, value in properties.items():
            if isinstance(value, str) and not value.isascii():
                delivery._check(name, value)
        if "expiration" in properties:
            delivery.note_deadline()
        return tag, delivery

    def note_deadline(self) -> None:
        """Note the deadline of a request that has just arrived: the broker delivers it before its expiration has passed.

        The time that it spent in the queue is not known, so that the deadline may be later than the caller's, by at most
        the expiration, and never earlier.
        """
        if self.properties.get("reply_to"):
            # A text that is no number: a broker that accepts it does not expire the message.
            with suppress(ValueError):
                self._deadline = time() + int(self.properties["expiration"]) / 1000

    def replace(
        self,
        *,
        body: bytes | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Delivery:
        """Return a copy with another body, other headers or other properties, for a middleware to pass on.

        `headers` and `properties` replace the whole table.

        A copy with another body has no `content_encoding`, unless `properties` names one: a middleware that decompresses a
        body passes on what it has decompressed.
        """
        if body is not None and properties is None and "content_encoding" in self.properties:
            properties = {
                name: value for name, value in self.properties.items() if name != "content_encoding"
            }
        changed = Delivery(
            self.body if body is None else body,
            self.exchange,
            self.routing_key,
            self.queue,
            self.redelivered,
            self._headers if headers is None else headers,
            self.properties if properties is None else properties,
            table=self._table if headers is None else b"",
        )
        changed.replayed = self.replayed
        changed.text_error = self.text_error
        changed.handling = self.handling
        changed._deadline = self._deadline
        changed._original = self.original
        return changed

    def detached(self, *, body: bytes | None = None, properties: Mapping[str, Any] | None = None) -> Delivery:
        """Return a copy with another body or other properties that is a message of its own: `app.forward` publishes these,
        not those of the delivery that was received. The headers keep their AMQP types.
        """
        original = self.original
        changed = original.replace(
            body=body, properties=original.properties if properties is None else properties
        )
        changed._original = None
        return changed

    def identity(self) -> Identity:
        """Return what tells the message from others: cheap to take, and without the body, which may be large."""
        return self.exchange, self.routing_key, self.properties, self._table, hash(self.body)

    def is_copy_of(self, other: Delivery) -> bool:
        """Return whether two deliveries are of equal messages, of which the broker delivers one again."""
        if self.message_id != other.message_id or self.body != other.body:
            return False
        return fingerprint(self.identity()) == fingerprint(other.identity()) is not None

    @property
    def lost(self) -> bool:
        """True once the channel on which the message arrived was lost, so that the broker delivers the message again.

        The handler may go on. If it succeeds, and the message comes to this process again, that delivery is settled with its
        result. If it fails, nothing is published for this delivery, and the message is handled again from the first attempt.
        """
        return self.handling is not None and self.handling.lost

    @property
    def original(self) -> Delivery:
        """The delivery before any middleware changed it. The SDK forwards, delays and dead-letters this one."""
        return self._original or self

    @property
    def headers(self) -> Mapping[str, Any]:
        """The header table. Timestamps are integers (Unix seconds), decimals are
        `Decimal`; a string that is not UTF-8 is `bytes`.

        :raises Undecodable: if the table is malformed or nested deeper than 64 tables and arrays. A handler that lets this
            error pass dead-letters its message as undecodable.
        """
        if self._headers is None:
            try:
                self._headers = _readable_values(self.fields())
            except field_tables.TableError as error:
                raise Undecodable(ValueError(f"the headers cannot be read: {error}")) from None
        return self._headers

    @property
    def readable_headers(self) -> Mapping[str, Any]:
        """The header table, as far as it can be read: without its tables and arrays if one of them is malformed, and
        empty if the table itself is. For what is read before the handler runs, and must not fail.
        """
        try:
            return self.headers
        except Undecodable:
            try:
                outer = field_tables.decode_outer_fields(self._table)
            except field_tables.TableError:
                return {}
            return _readable_values({name: field for name, field in outer.items() if field.kind not in "AF"})

    def fields(self) -> dict[str, field_tables.Field]:
        """Return the headers by name, each with its AMQP type and its bytes as received, so that they can be forwarded
        without loss.

        :raises warren.wire.field_tables.TableError: if the table is malformed.
        """
        if self._table or self._headers is None:
            return field_tables.decode_fields(self._table)
        return {name: field_tables.field_of(value) for name, value in self._headers.items()}

    def may_have_header(self, names: Callable[[], Iterable[bytes]]) -> bool:
        """Return False if the message has no header with one of these names. Checked without decoding the headers.

        :param names: returns the names; not called for a message without headers.
        """
        table = self._table
        if not table:
            return bool(self._headers)
        for name in names():  # noqa: SIM110 - a generator takes three times as long
            if name in table:
                return True
        return False

    @property
    def message_id(self) -> str | None:
        value = self.properties.get("message_id")
        return None if value is None else str(value)

    @property
    def type(self) -> str | None:
        value = self.properties.get("type")
        return None if value is None else str(value)

    @property
    def offset(self) -> int | None:
        """The message's offset in its stream; None if it does not come from a stream."""
        value = self.readable_headers.get(STREAM_OFFSET)
        return value if isinstance(value, int) else None

    @property
    def attempt(self) -> int:
        """Number of this delivery attempt: 1, plus one for each delayed retry."""
        # Any client can write this header. A number that no App writes counts as none.
        return max(1, count_in(self.readable_headers.get(ATTEMPT), 1))

    @property
    def first_published(self) -> datetime | None:
        """Time of the message's first publish, which republishing and delayed retries keep; None if unknown.

        Read from the header `warren-first-published`, else from the message id if it is a UUID version 7.
        """
        value = self.readable_headers.get(FIRST_PUBLISHED)
        if not isinstance(value, int):
            value = milliseconds_of(self.message_id or "")
        try:
            return None if value is None else datetime.fromtimestamp(value / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            # Another publisher's number may be outside the range of datetime.
            return None

    @property
    def deadline(self) -> datetime | None:
        """Time at which the caller of this request stops waiting for the reply, at the latest; None if the message is no
        request, or has no expiration.

        Forwarded and delayed copies of the request keep the deadline. It is real time, also on a test's virtual clock.
        """
        deadline = self._deadline
        if deadline is None:
            may_have = b"warren-deadline" in self._table if self._table else bool(self._headers)
            value = self.readable_headers.get(DEADLINE) if may_have else None
            if not isinstance(value, int) or isinstance(value, bool):
                return None
            deadline = value / 1000
        try:
            return datetime.fromtimestamp(deadline, UTC)
        except (ValueError, OverflowError, OSError):
            return None

    @property
    def has_expired(self) -> bool:
        """True if the message is a request, and its deadline has passed: nobody waits for the reply."""
        deadline = self.deadline
        return deadline is not None and deadline.timestamp() <= time()

    @property
    def republished(self) -> bool:
        """True if the publisher sent the message again after a lost connection: it may be a duplicate."""
        return bool(self.readable_headers.get(REPUBLISHED, False))

    @property
    def cause(self) -> str | None:
        """Id of the message whose handler published this one; None if it was published outside of a handler, or not with
        Warren's SDK.

        Read from the header `warren-cause`, which delays, retries, dead-lettering and replays keep.
        """
        value = self.readable_headers.get(CAUSE)
        return value if isinstance(value, str) else None

    def __repr__(self) -> str:
        return f"Delivery(queue={self.queue!r}, routing_key={self.routing_key!r}, message_id={self.message_id!r})"

    def _check(self, name: str, text: str) -> None:
        if self.text_error is None and not is_utf8(text):
            self.text_error = f"the {name.replace('_', ' ')} is not valid UTF-8"


def _readable_values(fields: Mapping[str, field_tables.Field]) -> dict[str, Any]:
    return {name: _readable(field.value) for name, field in fields.items()}


def _readable(value: field_tables.Value) -> Any:
    """Return a header's value as the user gets it: a string that is not UTF-8 becomes bytes.

    AMQP permits any bytes in a long string (AMQP 0-9-1 section 4.2.5.3).
    """
    if isinstance(value, str) and not is_utf8(value):
        return value.encode("utf-8", "surrogateescape")
    return value


CURRENT: ContextVar[Delivery | None] = ContextVar("warren_delivery", default=None)


def current_delivery() -> Delivery | None:
    """Return the delivery that the running handler handles, also in tasks that the handler started; else None."""
    return CURRENT.get()


@contextmanager
def as_current_delivery(delivery: Delivery) -> Iterator[None]:
    """Make this the delivery that `current_delivery` returns within the block."""
    token = CURRENT.set(delivery)
    try:
        yield
    finally:
        CURRENT.reset(token)
