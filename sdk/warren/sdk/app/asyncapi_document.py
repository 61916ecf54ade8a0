"""AsyncAPI 3.0 document of the messages that an App sends and receives, with AMQP bindings.

https://www.asyncapi.com/docs/reference/specification/v3.0.0 and its AMQP 0-9-1 bindings, version 0.3.0. Payloads are
the JSON Schemas that pydantic generates: for validation of what the App reads, for serialisation of what it sends.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeGuard
from urllib.parse import quote

from pydantic import TypeAdapter

from warren.sdk.app.app import App
from warren.sdk.app.schema_generator import FieldNamesGenerator
from warren.sdk.consume.batches import BatchCollector
from warren.sdk.consume.handlers.handler_spec import HandlerSpec
from warren.sdk.messages.types import Event, Message, PointToPointMessage, RequestMessage
from warren.sdk.topology.binding import Binding
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.queue import Queue
from warren.wire.amqp_url import parse_url

ASYNCAPI: Final = "3.0.0"
BINDINGS: Final = "0.3.0"

Direction = Literal["validation", "serialization"]
"""Mode of a JSON Schema: that of what the App reads, or of what it sends."""
FORMS: Final[Mapping[Direction, tuple[str, str]]] = {
    "validation": ("-Input", " (received)"),
    "serialization": ("-Output", " (sent)"),
}
"""Endings of the key and of the title of a message that is read in another form than it is sent; pydantic gives the same
endings to the names of such schemas."""


def asyncapi_document(app: App, *, title: str, version: str, description: str = "") -> dict[str, Any]:
    """Return the AsyncAPI document of one App as a dict for JSON: the messages that the App handles, and those that
    `app.publishes` lists.

    :param title: title of the application.
    :param version: version of the application, not of AsyncAPI.
    :param description: text about the application.
    """
    return _Document(app).made(title, version, description)


class _Document:
    def __init__(self, app: App) -> None:
        self._app = app
        self._url = None if app.url is None else parse_url(app.url)
        self._vhost = "/" if self._url is None else self._url.virtual_host
        self._queues = {item.name: item for item in app.topology if isinstance(item, Queue)}
        self._exchanges = {item.name: item for item in app.topology if isinstance(item, Exchange)}
        self._bindings = [item for item in app.topology if isinstance(item, Binding)]
        self._channels: dict[str, dict[str, Any]] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self._messages: dict[str, dict[str, Any]] = {}
        self._names: dict[tuple[str, object], str] = {}
        self._kinds: dict[str, tuple[Any, Direction]] = {}
        uses = set(self._uses())
        self._forms = {
            (kind, name)
            for kind, name, direction in uses
            if direction == "validation"
            and (kind, name, "serialization") in uses
            and _schema(kind, "validation") != _schema(kind, "serialization")
        }
        """Messages, by kind and name, that the App reads in another form than it sends."""

    def _uses(self) -> Iterator[tuple[Any, str, Direction]]:
        """Yield the messages, by kind and name, with the direction in which the App uses them."""
        for endpoint in self._app._handlers.endpoints.values():
            for handler in endpoint.handlers:
                yield handler.kind, "", "validation"
                if _is_request(handler.kind):
                    yield handler.kind.reply_type(), _reply_name(handler.kind), "serialization"
        for kind in self._app._operations.declared_publishes:
            yield kind, "", "serialization"
            if _is_request(kind):
                yield kind.reply_type(), _reply_name(kind), "validation"

    def made(self, title: str, version: str, description: str) -> dict[str, Any]:
        for queue, endpoint in self._app._handlers.endpoints.items():
            for handler in endpoint.handlers:
                self._receive(queue, handler)
        for kind in self._app._operations.declared_publishes:
            self._send(kind)
        schemas = self._schemas()
        info = {"title": title, "version": version}
        document: dict[str, Any] = {
            "asyncapi": ASYNCAPI,
            "info": {**info, "description": description} if description else info,
            "defaultContentType": "application/json",
        }
        if self._url is not None:
            host = f"[{self._url.host}]" if ":" in self._url.host else self._url.host
            server = {
                "host": f"{host}:{self._url.port}",
                "protocol": "amqps" if self._url.tls else "amqp",
                "protocolVersion": "0.9.1",
            }
            if self._vhost != "/":
                server["pathname"] = f"/{quote(self._vhost, safe='')}"
            document["servers"] = {"broker": server}
        document["channels"] = self._channels
        document["operations"] = self._operations
        document["components"] = {
            "messages": self._messages,
            "messageTraits": {"warren": {"headers": _HEADERS}},
            "schemas": schemas,
        }
        return document

    def _receive(self, queue: str, handler: HandlerSpec) -> None:
        channel = self._queue_channel(queue)
        message = self._message(handler.kind, "validation")
        operation = {
            "action": "receive",
            "channel": _ref("channels", channel),
            "messages": [self._in_channel(channel, message)],
            "bindings": {"amqp": {"ack": True, "bindingVersion": BINDINGS}},
            **_described(handler.function),
        }
        self._operations[self._name("operation", handler, f"handle_{_plain(handler.kind)}")] = operation
        self._replies(operation, handler.kind, "serialization")

    def _send(self, kind: type[Message]) -> None:
        message = self._message(kind, "serialization")
        one = issubclass(kind, PointToPointMessage)
        channel = self._queue_channel(kind.wire_key or "") if one else self._exchange_channel(kind)
        operation = {
            "action": "send",
            "channel": _ref("channels", channel),
            "messages": [self._in_channel(channel, message)],
            "bindings": {
                "amqp": {"deliveryMode": 2, "mandatory": kind.wire_mandatory, "bindingVersion": BINDINGS}
            },
        }
        self._operations[self._name("operation", kind, f"publish_{_plain(kind)}")] = operation
        self._replies(operation, kind, "validation")

    def _replies(self, operation: dict[str, Any], kind: Any, direction: Direction) -> None:
        if not _is_request(kind):
            return
        channel = self._name("channel", ("reply", kind), f"{_plain(kind)}.reply")
        answer = self._message(kind.reply_type(), direction, _reply_name(kind))
        # The queue of the replies is each caller's own: its address is in the request.
        self._channels.setdefault(channel, {"address": None, "messages": {}})
        operation["reply"] = {
            "address": {"location": "$message.header#/replyTo"},
            "channel": _ref("channels", channel),
            "messages": [self._in_channel(channel, answer)],
        }

    def _queue_channel(self, name: str) -> str:
        identity = self._name("channel", ("queue", name), name)
        if identity not in self._channels:
            queue = self._queues.get(name) or Queue(name)
            channel = self._channels[identity] = {
                "address": name,
                "messages": {},
                "bindings": {
                    "amqp": {
                        "is": "queue",
                        "queue": {
                            "name": name,
                            "durable": queue.durable,
                            "exclusive": queue.exclusive,
                            "autoDelete": queue.auto_delete,
                            "vhost": self._vhost,
                        },
                        "bindingVersion": BINDINGS,
                    }
                },
            }
            bound = [each for each in self._bindings if each.destination == name and not each.to_exchange]
            if bound:
                channel["x-bound-to"] = [{"exchange": each.source, "routingKey": each.key} for each in bound]
            channel["x-queue-arguments"] = queue.wire_arguments()
        return identity

    def _exchange_channel(self, kind: type[Message]) -> str:
        key = kind.wire_key or "#"
        identity = self._name("channel", ("exchange", kind.wire_exchange, key), f"{kind.wire_exchange}.{key}")
        if identity not in self._channels:
            value = kind.exchange_value if issubclass(kind, Event) else None
            exchange = self._exchanges.get(kind.wire_exchange) or value or Exchange(kind.wire_exchange)
            self._channels[identity] = {
                "address": key,
                "messages": {},
                "bindings": {
                    "amqp": {
                        "is": "routingKey",
                        "exchange": {
                            "name": exchange.name,
                            "type": exchange.type,
                            "durable": exchange.durable,
                            "autoDelete": exchange.auto_delete,
                            "vhost": self._vhost,
                        },
                        "bindingVersion": BINDINGS,
                    }
                },
            }
        return identity

    def _message(self, kind: Any, direction: Direction, name: str = "") -> str:
        """Return the key of a message class in `components/messages`; add the message on its first use.

        :param kind: a message class, or any type that pydantic can validate.
        :param name: name of the message if the class has no suitable one, such as the reply type of a request.
        """
        title = name or _plain(kind)
        suffix, note = FORMS[direction] if (kind, name) in self._forms else ("", "")
        identity = self._name("message", (kind, name, suffix), title + suffix)
        if identity not in self._messages:
            message: dict[str, Any] = {
                "name": title,
                "title": title + note,
                "contentType": _content_type(kind),
            }
            if isinstance(kind, type) and issubclass(kind, Message):
                message["name"] = kind.wire_type
                message["bindings"] = {"amqp": {"messageType": kind.wire_type, "bindingVersion": BINDINGS}}
                if kind.wire_aliases:
                    message["x-aliases"] = list(kind.wire_aliases)
                message["traits"] = [_ref("components", "messageTraits", "warren")]
            if name or _is_request(kind):
                message["correlationId"] = {"location": "$message.header#/correlationId"}
            if doc := _own_doc(kind):
                message["description"] = doc
            self._messages[identity] = message
            self._kinds[identity] = kind, direction
        return identity

    def _in_channel(self, channel: str, message: str) -> dict[str, str]:
        self._channels[channel]["messages"][message] = _ref("components", "messages", message)
        return _ref("channels", channel, "messages", message)

    def _schemas(self) -> dict[str, Any]:
        inputs = [
            (name, direction, TypeAdapter(_described_type(kind)))
            for name, (kind, direction) in self._kinds.items()
        ]
        made, definitions = TypeAdapter.json_schemas(
            inputs,
            ref_template="#/components/schemas/{model}",
            schema_generator=FieldNamesGenerator,
        )
        for (name, _), schema in made.items():
            content: Mapping[str, Any] = schema
            if self._kinds[str(name)][0] is bytes:
                content = {"type": "string", "format": "binary"}
            self._messages[str(name)]["payload"] = content
        found: dict[str, Any] = definitions.get("$defs", {})
        return found

    def _name(self, space: str, meant: object, wanted: str) -> str:
        """Return the document key of an item (a channel, operation or message); the same item gets the same key again.

        :param space: the kind of item, within which keys are unique: `channel`, `operation` or `message`.
        :param meant: identity of the item, by which calls for the same item are recognised.
        :param wanted: the preferred key. Characters that AsyncAPI forbids are
            replaced; a number is added if another item has the key.
        """
        key = (space, meant)
        if key not in self._names:
            taken = {name for (other, _), name in self._names.items() if other == space}
            plain = re.sub(r"[^A-Za-z0-9._-]", "_", wanted) or "_"
            name, number = plain, 1
            while name in taken:
                number += 1
                name = f"{plain}_{number}"
            self._names[key] = name
        return self._names[key]


_HEADERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "warren-attempt": {"type": "integer", "description": "1; one more for each delayed retry"},
        "warren-first-published": {"type": "integer", "description": "Unix time in milliseconds"},
        "warren-republished": {"type": "boolean", "description": "sent again after a lost connection"},
    },
}


def _schema(kind: Any, direction: Direction) -> dict[str, Any]:
    return TypeAdapter(_described_type(kind)).json_schema(
        mode=direction, schema_generator=FieldNamesGenerator
    )


def _described_type(kind: Any) -> Any:
    """Return the type whose schema describes content of a kind: any for bytes, and where a handler names none."""
    return Any if kind in (bytes, None) else kind


def _is_request(kind: Any) -> TypeGuard[type[RequestMessage]]:
    return isinstance(kind, type) and issubclass(kind, RequestMessage)


def _reply_name(kind: Any) -> str:
    return f"{_plain(kind)}Reply"


def _ref(*path: str) -> dict[str, str]:
    return {"$ref": "#/" + "/".join(each.replace("~", "~0").replace("/", "~1") for each in path)}


def _plain(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


def _content_type(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Message):
        return kind.wire_content_type
    return {bytes: "application/octet-stream", str: "text/plain"}.get(kind, "application/json")


def _described(function: Any) -> dict[str, str]:
    gathering = getattr(function, "__self__", None)
    doc = inspect.getdoc(gathering.function if isinstance(gathering, BatchCollector) else function)
    if not doc:
        return {}
    summary = " ".join(doc.partition("\n\n")[0].split())
    return {"summary": summary} if summary == doc else {"summary": summary, "description": doc}


def _own_doc(kind: Any) -> str:
    """Return the docstring of the message class itself; empty if it has none, because an inherited one describes a base
    class of the SDK.
    """
    doc = vars(kind).get("__doc__") if isinstance(kind, type) and issubclass(kind, Message) else None
    return inspect.cleandoc(doc) if doc else ""
