"""JSON schemas of the paths under `/api/warren/`, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer"}
RATE: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
OBJECT: Final[Schema] = {"type": "object"}
MOMENT: Final[Schema] = {"type": ["integer", "null"], "description": "Milliseconds since 1970"}
ID: Final[Schema] = {"type": "string", "description": "Id of a message, valid until the broker stops"}
NEXT: Final[Schema] = {
    "type": ["string", "null"],
    "description": "`after` of the next request; null if nothing is left",
}


def reference(name: str) -> Schema:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def listed(item: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item}


def record(description: str, optional: dict[str, Schema] | None = None, /, **required: Schema) -> Schema:
    """Return the schema of an object that has these members and no others."""
    return {
        "type": "object",
        "description": description,
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


DEAD_LETTER: Final = record(
    "Why, where and when the message was dead-lettered, and where it was published before",
    queue=TEXT,
    reason=TEXT,
    error=TEXT,
    exception=TEXT,
    exchange=TEXT,
    routing_key=TEXT,
    deaths=NUMBER,
    first_death=MOMENT,
    last_death=MOMENT,
    group=TEXT,
)
FILTER: Final[Schema] = {
    "type": "object",
    "description": "Conditions, all of which a message must fulfil",
    "properties": {
        "message_id": TEXT,
        "header": {"type": "string", "description": "NAME or NAME=VALUE"},
        "property": {"type": "string", "description": "NAME=VALUE"},
        "exchange": TEXT,
        "routing_key": TEXT,
        "group": {"type": "string", "description": "Id of a group of dead letters"},
    },
    "additionalProperties": False,
    "minProperties": 1,
}
SELECTION: Final[dict[str, Schema]] = {
    "ids": {"type": "array", "items": ID, "maxItems": 1000},
    "filter": reference("Filter"),
    "all": {"const": True},
    "after": ID,
    "limit": {"type": "integer", "minimum": 1, "maximum": 10000},
    "rate": {"type": "number", "minimum": 0.1, "description": "Most messages a second"},
    "dry_run": {"type": "boolean", "description": "Count only"},
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": record("Refusal of a request", error=TEXT, reason={}),
    "DeadLetter": DEAD_LETTER,
    "Filter": FILTER,
    "Message": record(
        "A message, as it is in its queue",
        {
            "due_at": MOMENT,
            "reason": TEXT,
            "offset": NUMBER,
            "stored_at": NUMBER,
            "consumer": record(
                "Consumer that holds the message", consumer_tag=TEXT, channel=TEXT, connection=TEXT, user=TEXT
            ),
        },
        id=ID,
        state={"enum": ["ready", "unacknowledged", "retry", "dead-lettering", "delayed", "stored"]},
        exchange=TEXT,
        routing_key=TEXT,
        redelivered=FLAG,
        delivery_count=NUMBER,
        persistent=FLAG,
        expires_at=MOMENT,
        properties=OBJECT,
        payload_bytes=NUMBER,
        payload=TEXT,
        payload_encoding={"enum": ["string", "base64"]},
        payload_truncated=FLAG,
        dead_letter={"oneOf": [reference("DeadLetter"), {"type": "null"}]},
    ),
    "Page": record(
        "Page of messages", messages=listed(reference("Message")), next=NEXT, scanned=NUMBER, total=NUMBER
    ),
    "Deletion": {"type": "object", "properties": SELECTION, "additionalProperties": True},
    "Move": {
        "type": "object",
        "properties": {**SELECTION, "queue": TEXT, "exchange": TEXT, "routing_key": TEXT},
        "additionalProperties": True,
    },
    "Replay": {
        "type": "object",
        "properties": {
            **SELECTION,
            "to_exchange": {
                "type": "boolean",
                "description": "To their exchanges, not to the queues in which they died",
            },
            "edit": record(
                "Changes of one message",
                {
                    "payload": TEXT,
                    "payload_encoding": {"enum": ["string", "base64"]},
                    "headers": OBJECT,
                    "properties": OBJECT,
                },
            ),
        },
        "additionalProperties": True,
    },
    "Outcome": record(
        "Result of a deletion, move or replay",
        scanned=NUMBER,
        matched=NUMBER,
        done=NUMBER,
        gone=NUMBER,
        failed=listed(record("Message that stayed", id=ID, reason=TEXT)),
        finished=FLAG,
        next=NEXT,
    ),
    "Groups": record(
        "Dead letters by cause",
        groups=listed(
            record(
                "Dead letters with one cause",
                group=TEXT,
                count=NUMBER,
                queue=TEXT,
                type=TEXT,
                reason=TEXT,
                exception=TEXT,
                error=TEXT,
                example_error=TEXT,
                example=ID,
                exchange=TEXT,
                routing_key=TEXT,
                first_death=MOMENT,
                last_death=MOMENT,
            )
        ),
        scanned=NUMBER,
        other=NUMBER,
        complete=FLAG,
        total=NUMBER,
    ),
    "DeadLetterQueues": listed(
        record(
            "Queue that dead letters come to",
            name=TEXT,
            vhost=TEXT,
            type=TEXT,
            messages=NUMBER,
            messages_ready=NUMBER,
            messages_unacknowledged=NUMBER,
            from_queues=listed(TEXT),
        )
    ),
    "Delays": listed(
        record(
            "Place where messages wait for a time",
            kind={"enum": ["exchange", "retry", "expiry"]},
            vhost=TEXT,
            name=TEXT,
            messages=NUMBER,
            next_due_at=MOMENT,
        )
    ),
    "Topology": record(
        "Exchanges and queues, what leads from one to another, and where a message could vanish",
        vhost=TEXT,
        nodes=listed(
            record(
                "Exchange or queue",
                id=TEXT,
                kind={"enum": ["exchange", "queue"]},
                name=TEXT,
                type=TEXT,
                durable=FLAG,
                messages=NUMBER,
                consumers=NUMBER,
                in_rate=RATE,
                out_rate=RATE,
                unroutable_dropped=NUMBER,
            )
        ),
        edges=listed(
            record(
                "Way of messages",
                kind={"enum": ["binding", "alternate", "dead-letter"]},
                source=TEXT,
                target=TEXT,
                routing_key=TEXT,
            )
        ),
        risks=listed(
            record("Risk", kind={"enum": ["loss", "restart"]}, subject=TEXT, text=TEXT, advice=TEXT)
        ),
        complete=FLAG,
        exchanges=NUMBER,
        queues=NUMBER,
    ),
    "Story": record(
        "Story of a message, and of those that caused it or that it caused",
        message_id=TEXT,
        stream=TEXT,
        messages=listed(record("Message", id=TEXT, cause={"type": ["string", "null"]})),
        participants=listed(TEXT),
        steps=listed(
            record(
                "Step; `at` in microseconds since 1970",
                at=NUMBER,
                message_id=TEXT,
                event=TEXT,
                source=TEXT,
                target=TEXT,
                text=TEXT,
                answer=FLAG,
            )
        ),
        batches=NUMBER,
        since=MOMENT,
        complete=FLAG,
    ),
    "Document": OBJECT,
}
