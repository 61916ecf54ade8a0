"""Message types: pydantic models with an address (Event, Command, Request, Scatter)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from warren.sdk.errors import ConfigError, Fault
from warren.sdk.keywords import describe_unknown_class_keyword
from warren.sdk.messages.content_types import JSON, MSGPACK, require_msgpack
from warren.sdk.messages.tightened_schema import build, tightened
from warren.sdk.messages.timestamps import require_utc
from warren.sdk.topology.binding import Binding
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.queue import Queue

Reply = TypeVar("Reply", covariant=True)

LONGEST_TYPE = 255
"""Bytes of the property `type`, which is a short string of AMQP."""


def snake_case(name: str) -> str:
    """Convert a class name: `OrderPlaced` -> `order_placed`, `HTTPFailed` -> `http_failed`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class Message(BaseModel):
    """Base of all messages. Unknown fields are ignored; datetimes need a time zone and are sent in UTC.

    Class keywords: `type=` is the message's name on the wire, by default the class name in snake case; `content_type=` is
    `application/json` (default) or `application/msgpack` (needs `warrenmq[msgpack]`); `aliases=` lists former names, whose
    messages this class reads, too: former types, and former names of the class, which stand for the type they had by
    default. Subclasses do not inherit the aliases.

    The type and the aliases of a generic class with its parameters, `Envelope[Order]`, are those of the class with the
    parameters in brackets: `billing.envelope[order]` for `type="billing.envelope"`.
    """

    # Content may be confidential: it must not reach logs and replies through the text of an error.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    wire_type: ClassVar[str] = "message"
    wire_aliases: ClassVar[tuple[str, ...]] = ()
    """Further values of the property `type` with which messages of this class arrive: former names."""
    wire_content_type: ClassVar[str] = JSON
    wire_exchange: ClassVar[str] = ""
    wire_key: ClassVar[str | None] = None
    wire_filter_by: ClassVar[str | None] = None
    """Name of the field that is the filter value of a message in a stream, or None."""
    wire_mandatory: ClassVar[bool] = True
    """True if the broker returns a message of this class when no queue takes it, so that its publish fails."""

    def __init_subclass__(
        cls,
        *,
        type: str | None = None,
        aliases: Iterable[str] = (),
        content_type: str | None = None,
        **keywords: Any,
    ) -> None:
        try:
            super().__init_subclass__(**keywords)
        except TypeError as error:
            if not keywords:
                raise
            more = ", and pydantic's configuration"
            raise ConfigError(describe_unknown_class_keyword(cls, keywords, more)) from error
        cls.wire_type = type or snake_case(cls.__name__)
        cls.wire_aliases = _alias_types(cls.__name__, cls.wire_type, aliases)
        if content_type is not None:
            if content_type not in (JSON, MSGPACK):
                raise ConfigError(
                    f"{cls.__name__}: content_type is {content_type!r}, it must be {JSON} or {MSGPACK}"
                )
            if content_type == MSGPACK:
                require_msgpack(cls.__name__)
            cls.wire_content_type = content_type

    @classmethod
    def __pydantic_init_subclass__(cls, **keywords: Any) -> None:
        super().__pydantic_init_subclass__(**keywords)
        cls._derive_generic_type()
        # A class whose fields name later classes is completed when it is used.
        if cls.__pydantic_complete__:
            cls._tighten()

    @classmethod
    def model_rebuild(cls, *, _parent_namespace_depth: int = 2, **options: Any) -> bool | None:
        """Complete the class, as pydantic's method does, when all classes that its fields name exist."""
        rebuilt = super().model_rebuild(_parent_namespace_depth=_parent_namespace_depth + 1, **options)
        if rebuilt:
            cls._tighten()
        return rebuilt

    @classmethod
    def _tighten(cls) -> None:
        """Require time zones in nested types, and notice infinite floats."""
        schema = tightened(cls.__pydantic_core_schema__)
        require_utc(schema)
        cls.__pydantic_core_schema__ = schema
        validator, serializer = build(schema)
        # An assignment would declare them anew for type checkers.
        setattr(cls, "__pydantic_validator__", validator)  # noqa: B010
        setattr(cls, "__pydantic_serializer__", serializer)  # noqa: B010

    @classmethod
    def _derive_generic_type(cls) -> None:
        """Set type and aliases of a generic class with its parameters."""
        # pydantic makes a subclass without class keywords for `Envelope[Order]`, and only now it is known to be one.
        generic = cls.__pydantic_generic_metadata__["origin"]
        if generic is not None and issubclass(generic, Message):
            name = cls.__name__
            parameters = (
                name.removeprefix(generic.__name__)
                if name.startswith(f"{generic.__name__}[")
                else f"[{name}]"
            )
            suffix = snake_case(parameters)
            if generic.wire_type != snake_case(generic.__name__):
                cls.wire_type = generic.wire_type + suffix
            cls.wire_aliases = tuple(alias + suffix for alias in generic.wire_aliases)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        require_utc(schema)
        return schema

    @classmethod
    def required_topology(cls) -> list[Declarable]:
        """Return the exchanges, queues and bindings that this message class
        needs. Publishers and handlers both declare them.
        """
        return []


def _alias_types(owner: str, own: str, aliases: Iterable[str]) -> tuple[str, ...]:
    """Return the types that the aliases of a class stand for, without its own type.

    The name of a class (`OrderPlaced`) stands for itself and for its type by default (`order_placed`).
    """
    if isinstance(aliases, str):
        raise ConfigError(f"{owner}: aliases is a list of names, not the text {aliases!r}")
    found: dict[str, None] = {}
    for alias in aliases:
        if not isinstance(alias, str) or not alias or len(alias.encode("utf-8", "replace")) > LONGEST_TYPE:
            raise ConfigError(
                f"{owner}: {alias!r} is no alias: it must be a text of 1 to {LONGEST_TYPE} bytes"
            )
        found[alias] = None
        if alias.isidentifier() and alias[0].isupper():
            found[snake_case(alias)] = None
    found.pop(own, None)
    return tuple(found)


PARAMETRISED: Final[WeakValueDictionary[tuple[object, str], type[Message]]] = WeakValueDictionary()
"""Generic classes with parameters that are published or handled, by class and type."""


def check_parametrised_type(kind: type[Message]) -> None:
    """Check that no other parameters of the same generic class give it the same type.

    :raises ConfigError: if two parameters have the same name, such as classes of two modules.
    """
    generic = kind.__pydantic_generic_metadata__["origin"]
    if generic is None:
        return
    other = PARAMETRISED.setdefault((generic, kind.wire_type), kind)
    parameters, others = (each.__pydantic_generic_metadata__["args"] for each in (kind, other))
    if parameters != others:
        raise ConfigError(
            f"{kind.__name__} of {_modules(parameters)} and of {_modules(others)} both have the type {kind.wire_type!r}:"
            f" derive a class with a name of its own from each, class Name({kind.__name__}), and use that"
        )


def _modules(parameters: Iterable[object]) -> str:
    return ", ".join(
        f"{getattr(each, '__module__', '')}.{getattr(each, '__qualname__', each)}" for each in parameters
    )


Kind = TypeVar("Kind", bound=Message)


def wire_names(kind: object) -> tuple[str, ...]:
    """Return the values of the property `type` with which messages of a class arrive, the present one first; for a type
    that is no message class, one empty text.
    """
    if isinstance(kind, type) and issubclass(kind, Message):
        return (kind.wire_type, *kind.wire_aliases)
    return ("",)


def by_wire_name(owner: str, kinds: Iterable[type[Kind]]) -> dict[str, type[Kind]]:
    """Return message classes by their types and aliases.

    :param owner: name of what uses the classes, for the error text.
    :raises ConfigError: if two classes have the same name.
    """
    found: dict[str, type[Kind]] = {}
    for kind in kinds:
        for name in wire_names(kind):
            other = found.setdefault(name, kind)
            if other is not kind:
                raise ConfigError(
                    f"{owner}: {other.__name__} and {kind.__name__} both have the type or alias {name!r}"
                )
    return found


class Event(Message):
    """A message about something that happened, for any number of queues.

    Class keywords, inherited by subclasses: `exchange=` is a topic exchange (a name, or an `Exchange`), `key=` is the
    routing key, `audience=` lists queues (names, or `Queue` values) that publishers declare too. Such queues keep
    messages that are published before their first consumer ever runs.

    An event with an audience must reach a queue, otherwise its publish raises `Unroutable`. One without an audience may
    be published while nobody listens. `mandatory=True` or `mandatory=False` says otherwise.

    `filter_by=` names a field whose value is sent in the header `x-stream-filter-value`, by which readers of a stream
    select messages; a message whose field is None has no such header.
    """

    wire_exchange: ClassVar[str] = ""
    wire_key: ClassVar[str | None] = None
    wire_audience: ClassVar[tuple[Queue, ...]] = ()
    wire_filter_by: ClassVar[str | None] = None
    wire_mandatory: ClassVar[bool] = False
    exchange_value: ClassVar[Exchange | None] = None

    def __init_subclass__(
        cls,
        *,
        exchange: str | Exchange | None = None,
        key: str | None = None,
        audience: Iterable[str | Queue] | None = None,
        mandatory: bool | None = None,
        filter_by: str | None = None,
        **keywords: Any,
    ) -> None:
        super().__init_subclass__(**keywords)
        if filter_by is not None:
            cls.wire_filter_by = filter_by
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
        if mandatory is not None:
            cls.wire_mandatory = mandatory
        elif audience is not None:
            # A request must reach a queue in any case: nobody else could answer it.
            cls.wire_mandatory = bool(cls.wire_audience) or issubclass(cls, RequestMessage)

    @classmethod
    def __pydantic_init_subclass__(cls, **keywords: Any) -> None:
        super().__pydantic_init_subclass__(**keywords)
        if cls.wire_filter_by is not None and cls.wire_filter_by not in cls.model_fields:
            fields = ", ".join(cls.model_fields) or "none"
            raise ConfigError(
                f"{cls.__name__}: filter_by={cls.wire_filter_by!r} is no field; its fields are {fields}"
            )

    @classmethod
    def required_topology(cls) -> list[Declarable]:
        check_parametrised_type(cls)
        if cls.exchange_value is None:
            raise ConfigError(
                f"{cls.__name__} has no exchange: class {cls.__name__}(Event, exchange=..., key=...)"
            )
        items: list[Declarable] = [cls.exchange_value]
        for queue in cls.wire_audience:
            items += [queue, Binding(cls.wire_exchange, queue.name, cls.wire_key or "#")]
        return items


class PointToPointMessage(Message):
    """A message for exactly one queue. Class keyword `queue=`: its name, or a `Queue`."""

    wire_key: ClassVar[str | None] = None
    queue_value: ClassVar[Queue | None] = None

    def __init_subclass__(cls, *, queue: str | Queue | None = None, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if queue is not None:
            cls.queue_value = queue if isinstance(queue, Queue) else Queue(queue)
            cls.wire_key = cls.queue_value.name

    @classmethod
    def required_topology(cls) -> list[Declarable]:
        check_parametrised_type(cls)
        if cls.queue_value is None:
            raise ConfigError(f"{cls.__name__} has no queue: class {cls.__name__}(..., queue=...)")
        return [cls.queue_value]


class Command(PointToPointMessage):
    """A message that asks for an action, for exactly one queue. Class keyword `queue=`: its name, or a `Queue`."""


class RequestMessage(Message):
    """A message that is answered with a reply. Class keyword `faults=`: `Fault`
    classes with which it may be answered instead.
    """

    wire_faults: ClassVar[tuple[type[Fault[Any]], ...]] = ()

    def __init_subclass__(cls, *, faults: Iterable[type[Fault[Any]]] = (), **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.wire_faults = (*cls.wire_faults, *faults)

    @classmethod
    def reply_type(cls) -> Any:
        """Return the type of the reply: `Quote` for `class GetQuote(Request[Quote], ...)`.

        :raises ConfigError: if the class does not name it.
        """
        known: dict[Any, Any] = {}
        for base in cls.__mro__:
            generic = getattr(base, "__pydantic_generic_metadata__", None)
            if not generic or not generic["args"]:
                continue
            # Type variables of a class stand for the parameters of the classes that derive from it, which come first.
            arguments = [_replaced(each, known) for each in generic["args"]]
            if generic["origin"] in (Request, Scatter):
                return arguments[0]
            known.update(
                zip(generic["origin"].__pydantic_generic_metadata__["parameters"], arguments, strict=False)
            )
        raise ConfigError(
            f"{cls.__name__} does not say what it is answered with: class {cls.__name__}(Request[...])"
        )


def _replaced(annotation: Any, known: dict[Any, Any]) -> Any:
    """Return a type with the known values of its type variables."""
    if isinstance(annotation, TypeVar):
        return known.get(annotation, annotation)
    variables = getattr(annotation, "__parameters__", ())
    if not any(each in known for each in variables):
        return annotation
    return annotation[tuple(known.get(each, each) for each in variables)]


class Request(PointToPointMessage, RequestMessage, Generic[Reply]):
    """A request to one queue, answered with a reply: `class GetQuote(Request[Quote], queue="quotes")`.

    The reply is of any type that pydantic validates. With a union (`Request[Quote | OutOfStock]`), the `type` property of
    the reply names the member.
    """


class Scatter(Event, RequestMessage, Generic[Reply]):
    """A request to all bound queues (scatter-gather): `class AskPrice(Scatter[Offer], exchange="prices", key="ask")`.

    The class keywords are those of an `Event`; `audience` lists the queues whose replies are expected. Without a queue
    that takes the request, the call raises `Unroutable`.
    """

    wire_mandatory: ClassVar[bool] = True
