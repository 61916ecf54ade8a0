"""Blocking connection to a broker with background heartbeats and one-line errors.

A Spark task that reads or writes spends most of its time outside this module, because Spark processes a batch for as
long as it needs. A thread therefore sends heartbeats (AMQP 0-9-1, section 4.2.7). Without heartbeats a broker would
keep the messages of an executor whose machine has died until the kernel closes the connection, after a quarter of an
hour or never.

    address = Address(url, timeout)
    with pipeline_errors(f"cannot read queue {name!r} at {address.masked_url}"):
        connection = retry_while_transient(timeout, address.open)
        ...
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

from warren.core.blocking_connection import BlockingConnection, ClosedByBroker, FetchedDelivery
from warren.pipeline.errors import PipelineError
from warren.wire import methods
from warren.wire.amqp_url import parse_url
from warren.wire.field_tables import TableError
from warren.wire.reply_codes import AmqpError, Reply

DEFAULT_HEARTBEAT = 60
"""Heartbeat interval in seconds that the client asks for unless the URL names another one; 0 in the URL disables
heartbeats."""
READ_SIZE = 256 * 1024
"""Maximum number of bytes that one read from the socket returns."""
CLOSE_TIMEOUT = 5.0
"""Seconds to wait for the broker's `close-ok` when closing a connection; a stopped broker does not send one."""
MAX_TIMEOUT = 1_000_000.0
"""Largest accepted timeout in seconds (eleven days). poll(2), which also serves socket timeouts, counts milliseconds in
32 bits, and so accepts no more than 24 days."""
PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds before the first repetition of an operation, and the longest pause between later ones; the pause doubles."""
TRANSIENT_REPLIES = (Reply.CONNECTION_FORCED, Reply.INTERNAL_ERROR)
"""Reply codes of a broker that is shutting down or starting: another attempt may succeed."""
_HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_CANCEL = methods.BY_NAME["basic.cancel"]


@dataclass(frozen=True)
class Address:
    """URL of a broker with the timeout for its answers, from which connections are opened.

    :param url: `amqp://` or `amqps://`, with credentials. Query parameters have aiormq's names: `cafile`, `capath`,
        `certfile`, `keyfile`, `no_verify_ssl` (paths on the machine that connects), `heartbeat` (seconds); others are
        ignored
    :param timeout: seconds without progress after which reading or writing fails
    :raises PipelineError: if the URL, the heartbeat or the timeout is not valid
    """

    url: str = field(repr=False)
    timeout: float = 30.0

    def __post_init__(self) -> None:
        try:
            parse_url(self.url)
        except ValueError as error:
            raise PipelineError(f"{error}; the form is amqp://user:password@host:port/vhost") from None
        if not 0 < self.timeout <= MAX_TIMEOUT:
            raise PipelineError(
                f"timeout is {self.timeout:g}: it must be more than 0 seconds, and at most {MAX_TIMEOUT:,.0f}"
            )
        parse_heartbeat(self.query)

    @property
    def masked_url(self) -> str:
        """The URL without its password and its query, for error messages."""
        return parse_url(self.url).masked

    @property
    def query(self) -> dict[str, str]:
        """The URL's query parameters, by name."""
        return dict(parse_qsl(urlsplit(self.url).query))

    def open(self, product: str = "warren pipeline") -> BrokerConnection:
        """Connect to the broker and open a channel.

        :param product: the client property `product`, which the broker shows for the connection
        :raises BrokerUnreachable: if the broker does not answer
        :raises PipelineError: if the broker refuses the connection; the error does not name the broker, which
            `pipeline_errors` adds
        """
        return BrokerConnection(self, product)


class Retries:
    """Repetition of an operation whose errors may disappear by themselves, until nothing has succeeded for a timeout.

    :param timeout: seconds without a success after which an error is final
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._pause = PAUSE
        self._since: float | None = time.monotonic()
        """Time since which nothing has succeeded; None until the next error."""
        self._first = ""

    def succeeded(self) -> None:
        """Record a success: the next error begins a new timeout."""
        self._since, self._pause, self._first = None, PAUSE, ""

    def wait(self, error: Exception) -> None:
        """Wait before the next attempt; the pauses grow.

        :param error: error of the last attempt
        :raises Exception: the error itself, if it does not disappear by itself
        :raises PipelineError: with the first and the last error, if the timeout has ended
        """
        if not is_transient(error):
            raise error
        now, text = time.monotonic(), describe_failure(error)
        if self._since is None:
            self._since = now
        if now - self._since >= self._timeout:
            again = f"tried again for {self._timeout:g} s"
            if not self._first:
                raise PipelineError(text)
            raise PipelineError(
                f"{text} ({again})" if self._first == text else f"{self._first} ({again}: {text})"
            )
        self._first = self._first or text
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


Result = TypeVar("Result")


def retry_while_transient(timeout: float, operation: Callable[[], Result]) -> Result:
    """Run an operation, and repeat it while it fails with an error that may disappear by itself, such as an unreachable
    broker.

    :param timeout: seconds after which the error of an attempt is final
    :param operation: opens a connection, and may use it; it closes the connection if it fails
    :return: what the operation returns
    :raises PipelineError: if it fails for another reason, or the timeout has ended
    """
    retries = Retries(timeout)
    while True:
        try:
            return operation()
        except (PipelineError, ClosedByBroker, OSError) as error:
            retries.wait(error)


class BrokerUnreachable(PipelineError):
    """Error: no broker answered at the address. Another attempt may succeed."""

    def __init__(self, text: str) -> None:
        super().__init__(text, transient=True)


class BrokerConnection:
    """Open connection to a broker with one open channel, and a thread that sends heartbeats.

    A lock serialises the owner and the heartbeat thread, because a TLS socket cannot read and write at the same time.
    """

    def __init__(self, address: Address, product: str) -> None:
        url = parse_url(address.url)
        context = tls_context(address.query) if url.tls else None
        try:
            conversation = BlockingConnection(
                url, address.timeout, product, context=context, heartbeat=parse_heartbeat(address.query)
            )
        except ClosedByBroker as error:
            raise PipelineError(describe_refusal(error), transient=is_transient(error)) from None
        except TimeoutError:
            raise BrokerUnreachable(f"the broker does not answer (waited {address.timeout:g} s)") from None
        except ssl.SSLError as error:
            raise PipelineError(describe_connect_error(error)) from None
        except OSError as error:
            raise BrokerUnreachable(describe_connect_error(error)) from None
        self.timeout = address.timeout
        self.frame_max = conversation.frame_max
        """Largest frame in bytes, as negotiated with the broker."""
        self.heartbeat = conversation.heartbeat
        """Negotiated heartbeat interval in seconds: the broker sends something at least that often. 0 means no
        heartbeats.
        """
        self.counts_are_exact = conversation.server_product == "Warren"
        """True if the broker reports the current message count of a stream; False for RabbitMQ, which updates it every
        5 s.
        """
        self._conversation = conversation
        self._socket = conversation.socket
        self._readable, self._writable, self._either = select.poll(), select.poll(), select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._writable.register(self._socket, select.POLLOUT)
        self._either.register(self._socket, select.POLLIN | select.POLLOUT)
        self._lock = threading.Lock()
        self._last_sent_at = self._last_received_at = time.monotonic()
        self._closed = threading.Event()
        if conversation.heartbeat:
            threading.Thread(
                target=self._send_heartbeats, args=(conversation.heartbeat / 2,), daemon=True
            ).start()

    def call(self, name: str, *values: methods.Argument) -> methods.Arguments:
        """Send a method and wait for its `-ok`.

        Other frames that arrive before the reply are dropped, so use it only while nothing else can arrive.

        :param name: name of the method, such as `queue.declare`
        :param values: all its fields in the order of the specification, reserved ones included
        :return: fields of the reply
        :raises ClosedByBroker: if the broker closes the channel or the connection instead
        :raises OSError: if the connection is lost
        """
        with self._lock:
            self._last_sent_at = time.monotonic()
            answer = self._conversation.call(name, *values)
            self._last_received_at = time.monotonic()
            return answer

    def get(self, queue: bytes) -> FetchedDelivery | None:
        """Fetch the next message of a queue, which must be acknowledged; return None if the queue has none.

        It shows whether a queue is empty. Call it before a consumer is started, because other frames are dropped.
        RabbitMQ replies to a passive `queue.declare` of a quorum queue with 0 messages and 0 consumers if no leader
        answers within 250 ms; `basic.get` waits for the leader.

        :raises ClosedByBroker: if the broker refuses, as RabbitMQ does for a quorum queue with a single active consumer
        :raises OSError: if the connection is lost
        """
        with self._lock:
            self._last_sent_at = time.monotonic()
            fetched = self._conversation.get(queue)
            self._last_received_at = time.monotonic()
            return fetched

    def send(self, frames: bytes) -> None:
        """Send frames; wait while the broker accepts no data.

        :raises OSError: if the connection is lost, or if the broker accepts no data within the address's timeout
        """
        with self._lock:
            self._last_sent_at = time.monotonic()
            self._socket.sendall(frames)

    def offer(self, frames: memoryview, wait: float) -> int:
        """Send as many of the given bytes as the socket accepts without waiting.

        If the socket accepts none, wait until it does or until data arrives, whichever is first. Publishers need this:
        a broker that returns messages may stop reading until the publisher reads what it returned.

        :param wait: longest wait in seconds
        :return: number of bytes sent; after 0, call `receive`
        :raises OSError: if the connection is lost
        """
        if not any(events & select.POLLOUT for _, events in self._either.poll(wait * 1000)):
            return 0
        with self._lock:
            self._last_sent_at = time.monotonic()
            return self._socket.send(frames)

    def receive(self, wait: float = 0.0) -> bytes:
        """Return up to 256 KiB of received bytes, not split into frames; empty if nothing arrives in time.

        :param wait: longest wait in seconds
        :raises OSError: if the connection is lost, or if two heartbeats are missing (a machine that died closes no
            connection)
        """
        if self._conversation.buffer:
            # Bytes that arrived together with the reply of the last call.
            early, self._conversation.buffer = self._conversation.buffer, b""
            return early
        deadline = time.monotonic() + wait
        data = self._receive_tls() if isinstance(self._socket, ssl.SSLSocket) else None
        while data is None:
            if not self._readable.poll(max(deadline - time.monotonic(), 0) * 1000):
                # Check only when the socket is empty: after a long pause of the owner it still holds unread heartbeats.
                if self.heartbeat and time.monotonic() - self._last_received_at > 2 * self.heartbeat:
                    raise TimeoutError
                return b""
            self._last_received_at = time.monotonic()
            if isinstance(self._socket, ssl.SSLSocket):
                data = self._receive_tls()
            else:
                with self._lock:
                    data = self._socket.recv(READ_SIZE)
        if not data:
            raise ConnectionError("the broker closed the connection")
        return data

    def _receive_tls(self) -> bytes | None:
        """Return decrypted bytes; None if the socket has only a part of a TLS record, or a record without application
        data.
        """
        with self._lock:
            self._socket.settimeout(0)
            try:
                return self._socket.recv(READ_SIZE)
            except ssl.SSLWantReadError:
                return None
            finally:
                self._socket.settimeout(self.timeout)

    def check_frame(self, frame: bytes) -> None:
        """Raise an error if a frame closes the channel or the connection, or cancels the consumer.

        It is called with the frames that belong neither to a delivery nor to the reply to `call`; those that do none of
        this, such as heartbeats, are ignored.

        :raises ClosedByBroker: if the frame closes the channel or the connection
        :raises PipelineError: if the frame cancels the consumer, because its queue was deleted
        """
        self._conversation.raise_if_closed(frame)
        if frame[0] == 1 and frame[7:11] == _CANCEL.class_id.to_bytes(2) + _CANCEL.method_id.to_bytes(2):
            raise PipelineError("the queue was deleted")

    def reopen(self) -> None:
        """Open the channel again after the broker closed it and an earlier call raised `ClosedByBroker` for that.

        Call it only while nothing else is in progress on the connection.
        """
        with self._lock:
            self._conversation.reopen()

    def close(self, rest: bytes = b"") -> None:
        """Close the connection and wait for the broker's `close-ok`. Errors are ignored, because a lost connection is
        closed as well.

        A broker requeues the unacknowledged messages before it answers, so if it does, they are back in the queue when
        this returns.

        :param rest: beginning of a frame that the caller has already received; the next bytes from the
            broker complete it
        """
        if self._closed.is_set():
            return
        self._closed.set()
        with suppress(OSError, ValueError, ClosedByBroker), self._lock:
            self._socket.settimeout(CLOSE_TIMEOUT)
            self._conversation.buffer = rest + self._conversation.buffer
            self._conversation.close()
        self._socket.close()

    def _send_heartbeats(self, interval: float) -> None:
        """Send a heartbeat whenever nothing was sent for `interval` seconds."""
        while not self._closed.wait(max(self._last_sent_at + interval - time.monotonic(), 0.01)):
            if time.monotonic() < self._last_sent_at + interval:
                continue
            with self._lock:
                # A full send buffer means that data is on its way to the broker, which replaces a heartbeat.
                self._last_sent_at = time.monotonic()
                try:
                    if not self._closed.is_set() and self._writable.poll(0):
                        self._socket.sendall(_HEARTBEAT_FRAME)
                except OSError:
                    return  # The owner's next call raises the error.


@contextmanager
def pipeline_errors(action: str) -> Iterator[None]:
    """Raise connection errors inside the block as `PipelineError` with the text "action: reason".

    :param action: what the block cannot do then, such as `cannot read queue 'orders'`
    """
    try:
        yield
    except (PipelineError, ClosedByBroker, OSError, AmqpError, TableError) as error:
        raise PipelineError(f"{action}: {describe_failure(error)}", transient=is_transient(error)) from None


def is_transient(error: Exception) -> bool:
    """Return whether the error may disappear by itself, so that another attempt makes sense: an `OSError`, a close by
    the broker with a reply code in `TRANSIENT_REPLIES`, or a `PipelineError` with `transient`.
    """
    match error:
        case PipelineError():
            return error.transient
        case ClosedByBroker(code=code):
            return code in TRANSIENT_REPLIES
        case _:
            return isinstance(error, OSError)


def describe_failure(error: Exception, progress: str = "") -> str:
    """Describe in one line, for the user, why an operation on an open connection failed.

    :param progress: how far the operation got, for example `after 3 of 5 messages`
    """
    suffix = f" {progress}" if progress else ""
    match error:
        case ClosedByBroker(code=Reply.NOT_FOUND, text=text):
            kind = "exchange" if " no exchange " in text else "queue"
            return f"there is no such {kind}{suffix}; declare it, or check the virtual host and the name"
        case ClosedByBroker(code=Reply.RESOURCE_LOCKED):
            return f"the queue is exclusive to another connection{suffix}"
        case ClosedByBroker(code=Reply.ACCESS_REFUSED, text=text):
            return f"the user has no permission for this{suffix} ({first_line(text)})"
        case TimeoutError():
            return f"the broker stopped answering{suffix}"
        case OSError(errno=int(number)):
            return f"the connection was lost{suffix}: {os.strerror(number)}"
        case OSError() | ClosedByBroker(code=Reply.CONNECTION_FORCED):
            return f"the connection was lost{suffix}: {first_line(str(error))}"
        case AmqpError() | TableError():
            return f"the broker sent data that is not AMQP 0-9-1{suffix}: {first_line(str(error))}"
        case _:
            return first_line(str(error) or type(error).__name__) + suffix


def describe_refusal(error: ClosedByBroker) -> str:
    """Describe in one line, for the user, why the broker refused the connection."""
    match error.code:
        case Reply.ACCESS_REFUSED:
            return "the broker refused the user name or the password"
        case Reply.NOT_ALLOWED:
            return "the virtual host does not exist, or the user has no access to it"
        case _:
            return first_line(str(error))


def describe_connect_error(error: OSError) -> str:
    """Describe in one line, for the user, why no connection to the broker could be made."""
    match error:
        case ssl.SSLCertVerificationError(verify_message=reason):
            return f"its certificate is not trusted ({reason}); name its authority in the URL: ?cafile=PATH"
        case ssl.SSLError(reason=reason):
            return f"no TLS connection could be made ({reason}); does this port speak TLS?"
        case socket.gaierror():
            return "the broker cannot be reached: its host name is not known"
        case OSError(errno=int(number)):
            return f"the broker cannot be reached: {os.strerror(number)}"
        case _:
            return first_line(str(error))


def parse_heartbeat(query: Mapping[str, str]) -> int:
    """Return the heartbeat interval in seconds: the parameter `heartbeat` of a broker's URL, or the default.

    :param query: query parameters of the URL, by name
    :raises PipelineError: if the parameter is not a number from 0 to 65535
    """
    text = query.get("heartbeat", str(DEFAULT_HEARTBEAT))
    if not text.isdecimal() or len(text) > 5 or int(text) > 0xFFFF:
        raise PipelineError(f"heartbeat is {text!r}: it must be a number of seconds, at most 65535")
    return int(text)


def tls_context(query: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS settings that the parameters `cafile`, `capath`, `certfile`, `keyfile` and `no_verify_ssl` of a
    broker's URL ask for.

    :param query: query parameters of the URL, by name
    :raises PipelineError: if a file cannot be used on this machine
    """
    try:
        context = ssl.create_default_context(cafile=query.get("cafile"), capath=query.get("capath"))
        if query.get("no_verify_ssl", "0") != "0":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate := query.get("certfile"):
            context.load_cert_chain(certificate, query.get("keyfile"))
    except OSError as error:
        raise PipelineError(
            f"a file of the URL (cafile, capath, certfile, keyfile) cannot be used on this machine: {error}"
        ) from None
    return context


def first_line(text: str) -> str:
    return text.splitlines()[0]
