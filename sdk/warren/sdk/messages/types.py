"""Event, Command and Request: pydantic models that are the addresses of what is sent."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from warren.sdk.errors import ConfigError, Fault
from warren.sdk.messages.content_types import JSON, MSGPACK
from warren.sdk.messages.timestamps import in_utc
from warren.sdk.topology.binding import Binding
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.queue import Queue

Reply = TypeVar("Reply", covariant=True)


def snake_case(name: str) -> str:
    """`OrderPlaced` -> `order_placed`, `HTTPFailed` -> `http_failed`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class Message(BaseModel):
    """What all messages share: unknown fields are ignored, times need a time zone and travel in UTC.

    Class keywords: `type="..."` is the name on the wire, by default the class's name in snake case; `content_type=`
    is how it travels, `application/json` by default, or `application/msgpack` (needs `warren[msgpack]`).
    """

    # What a message holds is its sender's: it must not reach logs and replies through the text of an error.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    wire_type: ClassVar[str] = "message"
    wire_content_type: ClassVar[str] = JSON
    wire_exchange: ClassVar[str] = ""
    wire_key: ClassVar[str | None] = None

    def __init_subclass__(
        cls, *, type: str | None = None, content_type: str | None = None, **keywords: Any
    ) -> None:
        super().__init_subclass__(**keywords)
        cls.wire_type = type or snake_case(cls.__name__)
        if content_type is not None:
            if content_type not in (JSON, MSGPACK):
                raise ConfigError(
                    f"{cls.__name__}: content_type is {content_type!r}, it must be {JSON} or {MSGPACK}"
                )
            cls.wire_content_type = content_type

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        in_utc(schema)
        return schema

    @classmethod
    def required_topology(cls) -> list[Declarable]:
        """What must exist for this message to arrive; publishers and handlers declare it alike."""
        return []


class Event(Message):
    """Something happened; any number of queues may listen.

    Class keywords, inherited by subclasses: `exchange=` a topic exchange (a name, or an `Exchange`), `key=` the
    routing key, `audience=` the queues (names, or `Queue` values) that must exist before the first publish, so that
    nothing is lost that is published before its first consumer ever ran.
    """

    wire_exchange: ClassVar[str] = ""
    wire_key: ClassVar[str | None] = None
    wire_audience: ClassVar[tuple[Queue, ...]] = ()
    exchange_value: ClassVar[Exchange | None] = None

    def __init_subclass__(
        cls,
        *,
        exchange: str | Exchange | None = None,
        key: str | None = None,
        audience: Iterable[str | Queue] | None = None,
        **keywords: Any,
    ) -> None:
        super().__init_subclass__(**keywords)
        if isinstance(audience, str):
            raise ConfigError(f"{cls.__name__}: audience is a list of queues, not the text {audience!r}")
        if exchange is not None:
            cls.exchange_value = exchange if isinstance(exchange, Exchange) else Exchange(exchange)
            cls.wire_exchange = cls.exchange_value.name
        if key is not None:
            cls.wire_key = key
        if audience is not None:
            cls.wire_audience = tuple(
                queue if isinstance(queue, Queue) else Queue(queue) for queue in audience
            )

    @classmethod
    def required_topology(cls) -> list[Declarable]:
        if cls.exchange_value is None:
            raise ConfigError(
                f"{cls.__name__} has no exchange: class {cls.__name__}(Event, exchange=..., key=...)"
            )
        items: list[Declarable] = [cls.exchange_value]
        for queue in cls.wire_audience:
            items += [queue, Binding(cls.wire_exchange, queue.name, cls.wire_key or "#")]
        return items


class PointToPointMessage(Message):
    """What exactly one queue takes. Class keyword `queue=`: its name, or a `Queue`."""

    wire_key: ClassVar[str | None] = None
    queue_value: ClassVar[Queue | None] = None

    def __init_subclass__(cls, *, queue: str | Queue | None = None, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if queue is not None:
            cls.queue_value = queue if isinstance(queue, Queue) else Queue(queue)
            cls.wire_key = cls.queue_value.name

    @classmethod
    def required_topology(cls) -> list[Declarable]:
        if cls.queue_value is None:
            raise ConfigError(f"{cls.__name__} has no queue: class {cls.__name__}(..., queue=...)")
        return [cls.queue_value]


class Command(PointToPointMessage):
    """Do something; exactly one queue takes it. Class keyword `queue=`: its name, or a `Queue`."""


class RequestMessage(Message):
    """What is answered. Class keyword `faults=`: the `Fault` classes that an answer may be instead."""

    wire_faults: ClassVar[tuple[type[Fault[Any]], ...]] = ()

    def __init_subclass__(cls, *, faults: Iterable[type[Fault[Any]]] = (), **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.wire_faults = (*cls.wire_faults, *faults)

    @classmethod
    def reply_type(cls) -> Any:
        """The type that the request is answered with."""
        for base in cls.__mro__:
            generic = getattr(base, "__pydantic_generic_metadata__", None)
            if generic and generic["origin"] in (Request, Scatter) and generic["args"]:
                return generic["args"][0]
        raise ConfigError(
            f"{cls.__name__} does not say what it is answered with: class {cls.__name__}(Request[...])"
        )


class Request(PointToPointMessage, RequestMessage, Generic[Reply]):
    """Ask one queue and get a `Reply`: `class GetQuote(Request[Quote], queue="quotes")`.

    The reply is any type of pydantic's. Of a union (`Request[Quote | OutOfStock]`), the reply's `type` says which
    member it is.
    """


class Scatter(Event, RequestMessage, Generic[Reply]):
    """Ask all who listen (scatter-gather): `class AskPrice(Scatter[Offer], exchange="prices", key="ask")`.

    The class keywords are those of an `Event`; the `audience` names the queues whose answers are expected.
    """
