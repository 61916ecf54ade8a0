"""OpenAPI 3.1 document of the paths under `/api/warren/`."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from warren.broker.http_api.call import Call, Response
from warren.broker.http_api.openapi_schemas import SCHEMAS, reference

_PART: Final = re.compile(r"\{(\w+)\}")


class Operation(NamedTuple):
    """Description of the operation of one route.

    :ivar answer: name of the schema of the response.
    :ivar body: name of the schema of the request's body; empty if it has none.
    :ivar query: names of the parameters of the query.
    """

    summary: str
    answer: str
    body: str = ""
    query: tuple[str, ...] = ()


FILTERS: Final = ("message_id", "header", "property", "exchange", "routing_key", "group")
PAGES: Final = ("after", "limit", "truncate", *FILTERS)
MESSAGES: Final = "/api/warren/queues/{vhost}/{queue}/messages"

OPERATIONS: Final = {
    ("GET", MESSAGES): Operation(
        "Show a page of messages, and leave them as they are", "Page", query=("state", "offset", *PAGES)
    ),
    ("POST", f"{MESSAGES}/delete"): Operation("Delete ready messages", "Outcome", "Deletion"),
    ("POST", f"{MESSAGES}/move"): Operation(
        "Move ready messages to an exchange or a queue", "Outcome", "Move"
    ),
    ("POST", f"{MESSAGES}/replay"): Operation(
        "Publish dead letters where they were published before they died", "Outcome", "Replay"
    ),
    ("GET", "/api/warren/queues/{vhost}/{queue}/dead-letters"): Operation(
        "Group the dead letters of a queue by cause", "Groups"
    ),
    ("GET", "/api/warren/exchanges/{vhost}/{exchange}/delayed"): Operation(
        "Show a page of the messages that a delayed exchange holds back", "Page", query=PAGES
    ),
    ("GET", "/api/warren/dead-letters"): Operation(
        "List the queues that dead letters come to", "DeadLetterQueues"
    ),
    ("GET", "/api/warren/dead-letters/{vhost}"): Operation(
        "List the queues of a virtual host that dead letters come to", "DeadLetterQueues"
    ),
    ("GET", "/api/warren/delays"): Operation("List the places where messages wait for a time", "Delays"),
    ("GET", "/api/warren/delays/{vhost}"): Operation(
        "List the places of a virtual host where messages wait for a time", "Delays"
    ),
    ("GET", "/api/warren/topology/{vhost}"): Operation(
        "Show the topology with rates, and where a message could vanish", "Topology"
    ),
    ("GET", "/api/warren/stories/{vhost}/{message_id}"): Operation(
        "Tell the story of a message from captured events", "Story", query=("stream",)
    ),
    ("GET", "/api/warren/openapi.json"): Operation("Describe these paths", "Document"),
}
"""Operations by method and path."""
PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "state": {
        "description": "State of the messages",
        "schema": {"enum": ["ready", "unacknowledged", "retry", "dead-lettering"], "default": "ready"},
    },
    "offset": {
        "description": "Where a page of a stream begins: a number, first or last",
        "schema": {"type": "string"},
    },
    "after": {"description": "Id of the message behind which the page begins", "schema": {"type": "string"}},
    "limit": {
        "description": "Most messages",
        "schema": {"type": "integer", "minimum": 1, "maximum": 500, "default": 50},
    },
    "truncate": {
        "description": "Bytes of each payload",
        "schema": {"type": "integer", "minimum": 0, "maximum": 262144, "default": 4096},
    },
    "message_id": {"description": "Message id", "schema": {"type": "string"}},
    "header": {"description": "NAME or NAME=VALUE of a header", "schema": {"type": "string"}},
    "property": {"description": "NAME=VALUE of a property", "schema": {"type": "string"}},
    "exchange": {"description": "Exchange that it was published to", "schema": {"type": "string"}},
    "routing_key": {"description": "Routing key", "schema": {"type": "string"}},
    "group": {"description": "Id of a group of dead letters", "schema": {"type": "string"}},
    "stream": {"description": "Stream with the events", "schema": {"type": "string"}},
}
"""Parameters of queries, by name."""
REFUSALS: Final = {
    "400": "The request is malformed, or cannot be carried out",
    "401": "The login is wrong, or a permission is missing",
    "403": "The request comes from a page of another site",
    "404": "There is no such object, or the caller may not see it",
}


def openapi() -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Warren",
            "version": "1",
            "description": "Paths of Warren's HTTP API that RabbitMQ's does not have.",
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
        },
        "security": [{"basic": []}],
    }


def _operation(method: str, path: str, operation: Operation) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PART.findall(path)
    ]
    # The path names the exchange already.
    named = {each["name"] for each in parameters}
    parameters += [
        {"name": name, "in": "query", **PARAMETERS[name]} for name in operation.query if name not in named
    ]
    words = [word for word in re.split(r"[^a-z]+", path.removeprefix("/api/warren/")) if word]
    found: dict[str, Any] = {
        "operationId": "_".join([method.lower(), *words]),
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done", "content": _content(operation.answer)},
            **{
                status: {"description": text, "content": _content("Error")}
                for status, text in REFUSALS.items()
            },
        },
    }
    if operation.body:
        found["requestBody"] = {"required": True, "content": _content(operation.body)}
    return found


def _content(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": reference(schema)}}


async def document(call: Call) -> Response:
    """Return the OpenAPI document."""
    return Response(body=openapi())
