"""Blocking AMQP client that returns every method as it came: channels on top of `raw_client`, no Warren code.

`Channel.state` (a passive declare) is a fence: deliveries of that queue to the same channel have arrived before its answer,
so that a test can assert without waiting that no more came. RabbitMQ answers it before it has processed earlier methods;
only there, the fence polls until the answer is stable.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from pamqp import commands, frame
from pamqp.base import Frame as Method
from pamqp.commands import Basic, Confirm, Exchange, Queue
from pamqp.commands import Channel as ChannelClass
from pamqp.commands import Connection as ConnectionClass
from pamqp.header import ContentHeader

from tests.support import frames
from tests.support.frames import body_frames, publish_frames
from tests.support.polling import PATIENCE
from tests.support.raw_client import RawClient

Table: TypeAlias = dict[str, Any]
Reply = TypeVar("Reply", bound=Method)

CARRIERS = (Basic.Deliver, Basic.GetOk, Basic.Return)


class Closed(Exception):
    """The broker has closed a channel, or the connection."""

    def __init__(self, code: int, text: str, method: tuple[int, int]) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text
        self.method = method


@dataclass(frozen=True)
class Message:
    """A message of basic.deliver, basic.get-ok or basic.return."""

    carrier: Basic.Deliver | Basic.GetOk | Basic.Return
    header: bytes
    """Payload of the header frame, undecoded."""
    properties: Basic.Properties
    body: bytes

    @property
    def tag(self) -> int:
        assert not isinstance(self.carrier, Basic.Return)
        assert self.carrier.delivery_tag is not None
        return self.carrier.delivery_tag

    @property
    def redelivered(self) -> bool:
        assert not isinstance(self.carrier, Basic.Return)
        return bool(self.carrier.redelivered)

    @property
    def consumer(self) -> str:
        assert isinstance(self.carrier, Basic.Deliver)
        return str(self.carrier.consumer_tag)

    @property
    def headers(self) -> Table:
        return dict(self.properties.headers or {})


Event: TypeAlias = Method | Message


class Connection:
    """A connection. Its channels store what arrives until a test reads it."""

    def __init__(self, url: str, *, timeout: float = PATIENCE, properties: Table | None = None) -> None:
        """:param properties: client properties; None for the usual ones"""
        self.raw = RawClient(url, timeout=timeout)
        try:
            self.raw.connect(properties=properties)
        except BaseException:
            self.raw.abort()
            raise
        self.server = dict(self.raw.server)
        self.channels: dict[int, Channel] = {}
        self.events: deque[Method] = deque()
        """Methods for the connection itself: blocked, unblocked."""

    @property
    def is_rabbitmq(self) -> bool:
        return bool(self.server["product"] == "RabbitMQ")

    def channel(self) -> Channel:
        """Open another channel."""
        number = max(self.channels, default=0) + 1
        channel = self.channels[number] = Channel(self, number)
        channel.call(ChannelClass.Open(), ChannelClass.OpenOk)
        return channel

    def read(self) -> None:
        """Read one method with its content and store it in its channel or connection.

        :raises Closed: if it closes the channel or the connection.
        """
        found = self.raw.read_frame()
        while found.kind == frames.HEARTBEAT:
            found = self.raw.read_frame()
        method = _method(found)
        if isinstance(method, ConnectionClass.Close):
            self.raw.send_bytes(frame.marshal(ConnectionClass.CloseOk(), 0))
            raise _closed(method)
        if found.channel == 0:
            self.events.append(method)
            return
        channel = self.channels[found.channel]
        if isinstance(method, ChannelClass.Close):
            self.raw.send_bytes(frame.marshal(ChannelClass.CloseOk(), found.channel))
            raise _closed(method)
        channel.events.append(self._content(method) if isinstance(method, CARRIERS) else method)

    def _content(self, carrier: Basic.Deliver | Basic.GetOk | Basic.Return) -> Message:
        head = self.raw.read_frame()
        data = frames.frame(head.kind, head.channel, head.payload)
        header = frame.unmarshal(data)[2]
        assert isinstance(header, ContentHeader), header
        body = b""
        while len(body) < header.body_size:
            piece = self.raw.read_frame()
            assert piece.kind == frames.BODY, piece
            body += piece.payload
        return Message(carrier, head.payload, header.properties, body)

    def event(self) -> Method:
        """Return the next method for the connection itself."""
        while not self.events:
            self.read()
        return self.events.popleft()

    def close(self) -> None:
        try:
            self.raw.close()
        except BaseException:
            self.raw.abort()
            raise

    def abort(self) -> None:
        """Close the socket without connection.close."""
        self.raw.abort()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


class Channel:
    """A channel. Methods with an answer wait for it; all other methods stay in `events`, in order."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.events: deque[Event] = deque()

    # -- any method

    def send(self, *methods: Method) -> None:
        self.connection.raw.send_bytes(b"".join(frame.marshal(method, self.number) for method in methods))

    def call(self, method: Method, reply: type[Reply]) -> Reply:
        self.send(method)
        return self.next_method(reply)

    def next_method(self, kind: type[Reply]) -> Reply:
        """Return the next method of this kind; those before it stay in `events`."""
        found = self._next(lambda event: isinstance(event, kind))
        assert isinstance(found, kind)
        return found

    def next(self) -> Event:
        """Return the next method or message."""
        return self._next(lambda event: True)

    def _next(self, wanted: Callable[[Event], bool]) -> Event:
        seen = 0
        while True:
            for at in range(seen, len(self.events)):
                if wanted(self.events[at]):
                    event = self.events[at]
                    del self.events[at]
                    return event
            seen = len(self.events)
            self.connection.read()

    def closed(self) -> Closed:
        """Wait until the broker closes this channel or the connection; return its error. Earlier events are kept."""
        while True:
            try:
                self.connection.read()
            except Closed as error:
                return error

    def close(self) -> None:
        self.call(ChannelClass.Close(200, "bye", 0, 0), ChannelClass.CloseOk)
        del self.connection.channels[self.number]

    # -- topology

    def declare(
        self,
        queue: str = "",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        **arguments: Any,
    ) -> str:
        """Declare a queue and return its name; `x_max_length=3` is the argument x-max-length."""
        reply = self.call(
            Queue.Declare(
                queue=queue,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments={name.replace("_", "-"): value for name, value in arguments.items()},
            ),
            Queue.DeclareOk,
        )
        return str(reply.queue)

    def state(self, queue: str) -> tuple[int, int]:
        """Return the number of ready messages and of consumers. All earlier deliveries of this queue have arrived then."""
        found = self._state(queue)
        if self.connection.is_rabbitmq:
            # Its queues answer this before they look at what came before it.
            before = None
            while found != before:
                time.sleep(0.05)
                before, found = found, self._state(queue)
        return found

    def _state(self, queue: str) -> tuple[int, int]:
        reply = self.call(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)
        assert reply.message_count is not None
        assert reply.consumer_count is not None
        return reply.message_count, reply.consumer_count

    def ready(self, queue: str) -> int:
        return self.state(queue)[0]

    def exists(self, queue: str) -> bool:
        """Return whether the queue exists. It uses another channel, which a refusal closes."""
        other = self.connection.channel()
        try:
            other.state(queue)
        except Closed:
            del self.connection.channels[other.number]
            return False
        other.close()
        return True

    def declare_exchange(
        self,
        name: str,
        kind: str = "fanout",
        *,
        durable: bool = False,
        auto_delete: bool = False,
        **arguments: Any,
    ) -> str:
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.call(
            Exchange.Declare(
                exchange=name,
                exchange_type=kind,
                durable=durable,
                auto_delete=auto_delete,
                arguments=table,
            ),
            Exchange.DeclareOk,
        )
        return name

    def bind(self, queue: str, exchange: str, key: str = "") -> None:
        self.call(Queue.Bind(queue=queue, exchange=exchange, routing_key=key), Queue.BindOk)

    def delete(self, queue: str) -> int:
        reply = self.call(Queue.Delete(queue=queue), Queue.DeleteOk)
        assert reply.message_count is not None
        return reply.message_count

    def delete_exchange(self, name: str) -> None:
        self.call(Exchange.Delete(exchange=name), Exchange.DeleteOk)

    def purge(self, queue: str) -> int:
        reply = self.call(Queue.Purge(queue=queue), Queue.PurgeOk)
        assert reply.message_count is not None
        return reply.message_count

    # -- messages

    def publish(
        self,
        queue: str,
        body: bytes | str = b"",
        *,
        exchange: str = "",
        mandatory: bool = False,
        **properties: Any,
    ) -> None:
        """Publish; by default to the queue of that name. `properties` are those of pamqp's Basic.Properties."""
        self.connection.raw.send_bytes(self.encoded(queue, body, exchange, mandatory, **properties))

    def encoded(
        self,
        queue: str,
        body: bytes | str = b"",
        exchange: str = "",
        mandatory: bool = False,
        **properties: Any,
    ) -> bytes:
        """Return the frames of a publish, to send many at once."""
        data = body.encode() if isinstance(body, str) else body
        if not properties:
            return publish_frames(self.number, exchange, queue, data, mandatory=mandatory)
        method = Basic.Publish(exchange=exchange, routing_key=queue, mandatory=mandatory)
        header = ContentHeader(body_size=len(data), properties=Basic.Properties(**properties))
        opening = frame.marshal(method, self.number) + frame.marshal(header, self.number)
        return opening + body_frames(self.number, data, self.connection.raw.frame_max)

    def confirm(self) -> None:
        self.call(Confirm.Select(), Confirm.SelectOk)

    def settled(self, count: int) -> list[bool]:
        """Wait until the first `count` publishes have their confirm: True for each ack, False for each nack.

        :raises AssertionError: if one gets two, or a confirm names one that was not sent.
        """
        outcomes: dict[int, bool] = {}
        while len(outcomes) < count:
            found = self._next(lambda event: isinstance(event, (Basic.Ack, Basic.Nack)))
            assert isinstance(found, (Basic.Ack, Basic.Nack))
            assert found.delivery_tag is not None
            low = 1 if found.multiple else found.delivery_tag
            fresh = [tag for tag in range(low, found.delivery_tag + 1) if tag not in outcomes]
            assert found.delivery_tag in fresh, f"{found.delivery_tag} is settled twice"
            assert found.delivery_tag <= count, f"{found.delivery_tag} was never published"
            outcomes.update(dict.fromkeys(fresh, isinstance(found, Basic.Ack)))
        return [outcomes[tag] for tag in sorted(outcomes)]

    def settled_until(self, number: int) -> None:
        """Wait for the confirm that covers this publish."""
        while (self.next_method(Basic.Ack).delivery_tag or 0) < number:
            pass

    def qos(self, count: int, *, shared: bool = False) -> None:
        self.call(Basic.Qos(prefetch_count=count, global_=shared), Basic.QosOk)

    def consume(self, queue: str, tag: str = "", *, no_ack: bool = False, exclusive: bool = False) -> str:
        reply = self.call(
            Basic.Consume(queue=queue, consumer_tag=tag, no_ack=no_ack, exclusive=exclusive), Basic.ConsumeOk
        )
        return str(reply.consumer_tag)

    def cancel(self, tag: str) -> None:
        self.call(Basic.Cancel(consumer_tag=tag), Basic.CancelOk)

    def deliveries(self, count: int) -> list[Message]:
        """Wait for the next `count` deliveries."""
        return [self._message() for _ in range(count)]

    def _message(self) -> Message:
        found = self._next(lambda event: isinstance(event, Message))
        assert isinstance(found, Message)
        return found

    def delivered(self, queue: str) -> list[Message]:
        """Return all messages that were delivered to this channel and not read yet."""
        self.state(queue)
        found = [event for event in self.events if isinstance(event, Message)]
        self.events = deque(event for event in self.events if not isinstance(event, Message))
        return found

    def get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        self.send(Basic.Get(queue=queue, no_ack=no_ack))
        found = self._next(
            lambda event: (
                isinstance(event, Basic.GetEmpty)
                or (isinstance(event, Message) and isinstance(event.carrier, Basic.GetOk))
            )
        )
        return found if isinstance(found, Message) else None

    def drain(self, queue: str) -> list[bytes]:
        """Consume all ready messages; return their bodies."""
        bodies = []
        while (message := self.get(queue, no_ack=True)) is not None:
            bodies.append(message.body)
        return bodies

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.send(Basic.Ack(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.send(Basic.Nack(tag, multiple, requeue))

    def reject(self, tag: int, *, requeue: bool = False) -> None:
        self.send(Basic.Reject(tag, requeue))

    def recover(self) -> None:
        self.call(Basic.Recover(requeue=True), Basic.RecoverOk)


def _method(found: frames.Frame) -> Method:
    assert found.kind == frames.METHOD, found
    value = frame.unmarshal(frames.frame(found.kind, found.channel, found.payload))[2]
    assert isinstance(value, Method), value
    return value


def _closed(method: ChannelClass.Close | ConnectionClass.Close) -> Closed:
    assert method.reply_code is not None
    return Closed(
        method.reply_code, str(method.reply_text), (int(method.class_id or 0), int(method.method_id or 0))
    )


__all__ = ["Channel", "Closed", "Connection", "Message", "commands"]
