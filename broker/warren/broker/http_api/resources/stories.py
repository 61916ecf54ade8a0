"""Story of a message from captured events: its publish, routes, deliveries and settlements, and related messages."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from typing import Final

from warren.broker.http_api.api_error import ApiError, bad_request
from warren.broker.http_api.call import Call, Response
from warren.broker.http_api.messages.message_filter import decode_properties
from warren.broker.http_api.messages.stream_page import StoredMessage, read_stream
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_in_slices
from warren.broker.model.stream.stream import Stream
from warren.broker.operations.messages import queue_to_browse
from warren.core.capture_events import MESSAGE_TYPE
from warren.core.message_story import CapturedEvent, Causes, Story, tell
from warren.wire.content import body_payload
from warren.wire.reply_codes import AmqpError, Reply

STREAM: Final = b"warren.events"
"""Stream of events unless the request or the broker's setting `capture_events` names another one."""
MOST_BATCHES: Final = 20_000
"""Batches of events, the newest ones, that are searched."""
MOST_IDS: Final = 100
"""Related messages that are searched for at most."""
MOST_EVENTS: Final = 5000
"""Events of a story at most."""
ROUNDS: Final = 4
"""Searches of the stream at most. Each finds the events of messages that the one before has found to be related."""
MOST_SECONDS: Final = 10.0
"""Seconds after which the search ends."""
LONGEST_ID: Final = 255


class Search:
    """Search of a stream for the events of related messages."""

    def __init__(self, message_id: str) -> None:
        self.wanted = {message_id}
        self.events: dict[tuple[str, int, int], CapturedEvent] = {}
        """Events by source, number of the batch in the source, and place in the batch: none counts twice."""
        self.batches = 0
        self.since: int | None = None
        """Time of the first batch that was searched, in milliseconds since 1970."""

    def scan(self, found: list[StoredMessage]) -> Generator[None, None, None]:
        """Collect the events of the wanted messages, and want those that caused them or that they caused."""
        needles = [needle for each in self.wanted for needle in _encoded(each)]
        for stored in found:
            self.batches += 1
            if self.since is None or stored.at < self.since:
                self.since = stored.at
            content = stored.message.content
            if any(needle in content for needle in needles):
                self._add(stored)
            yield

    def _add(self, stored: StoredMessage) -> None:
        properties = decode_properties(stored.message)
        if properties is None or properties.data("type") != MESSAGE_TYPE.encode():
            return
        headers = {name: field.value for name, field in properties.headers.items()}
        application = name_text(properties.data("app_id") or b"")
        try:
            source, by, number = str(headers["source"]), str(headers["by"]), headers["sequence"]
            events = json.loads(body_payload(stored.message.content))
            if not isinstance(number, int) or not isinstance(events, list):
                return
            for at, event in enumerate(events):
                identity, cause = event.get("message_id", ""), event.get("cause", "")
                if identity in self.wanted or (cause and cause in self.wanted):
                    fields = {k: v for k, v in event.items() if k not in ("event", "at", "message_id")}
                    captured = CapturedEvent(
                        str(event["event"]), int(event["at"]), str(identity), application, by, source, fields
                    )
                    if len(self.events) < MOST_EVENTS:
                        self.events[source, int(number), at] = captured
                    for related in (identity, cause):
                        if related and len(self.wanted) < MOST_IDS:
                            self.wanted.add(str(related))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # Anybody who may write to the stream may have written anything.
            return


def _encoded(message_id: str) -> list[bytes]:
    """Return the forms that an id may have in JSON."""
    return [
        json.dumps(message_id, ensure_ascii=ascii_only)[1:-1].encode("utf-8", "surrogateescape")
        for ascii_only in (True, False)
    ]


async def story(call: Call) -> Response:
    """Return the story of a message, with those of the messages that caused it and that it caused."""
    stream = _stream(call)
    message_id = call.name("message_id")
    if not message_id or len(message_id) > LONGEST_ID:
        raise bad_request(f"a message id has 1 to {LONGEST_ID} characters")
    search = Search(message_id)
    begin = max(int(stream.messages.first), int(stream.messages.committed) - MOST_BATCHES)
    last = int(stream.messages.committed)
    end = time.monotonic() + MOST_SECONDS
    complete = begin <= stream.messages.first
    for _ in range(ROUNDS):
        before = len(search.wanted)
        search.batches = 0
        offset = begin
        while offset < last:
            found, following = await read_stream(stream, offset)
            if not found and following <= offset:
                break
            await run_in_slices(search.scan(found))
            offset = following
            if time.monotonic() >= end:
                complete = False
                break
        if len(search.wanted) == before or time.monotonic() >= end:
            break
    # Without the lone halves of surrogate pairs, which are no text, an order exists for all.
    events = sorted(search.events.values(), key=lambda event: event.at)
    causes = Causes()
    for event in events:
        causes.add(event)
    related = causes.related([message_id]) if message_id in causes.known else {}
    return Response(body=_as_json(tell(related, events), message_id, stream, search, complete))


def _stream(call: Call) -> Stream:
    """Return the stream that has the events, which the caller may read.

    :raises ApiError: 404 if there is none.
    :raises AmqpError: 403 without the permission.
    """
    principal = call.principal()
    capture = principal.vhost.capture
    name = STREAM if capture is None else capture.stream or STREAM
    if "stream" in call.query:
        name = call.query["stream"].encode("utf-8", "surrogateescape")
    stream = None
    try:
        stream = queue_to_browse(principal, name)
    except AmqpError as error:
        if error.code != Reply.NOT_FOUND:
            raise
    if not isinstance(stream, Stream):
        raise ApiError(
            404,
            "not_found",
            f"there is no stream '{name_text(name)}': capture events with `warren broker --capture-events` or "
            "App(capture=Capture())",
        )
    return stream


def _as_json(told: Story, message_id: str, stream: Stream, search: Search, complete: bool) -> Json:
    return {
        "message_id": message_id,
        "stream": name_text(stream.name),
        "messages": [{"id": each, "cause": cause or None} for each, cause in told.messages.items()],
        "participants": told.participants,
        "steps": [
            {
                "at": step.at,
                "message_id": step.message_id,
                "event": step.name,
                "source": step.source,
                "target": step.target,
                "text": step.text,
                "answer": step.is_answer,
            }
            for step in told.steps
        ],
        "batches": search.batches,
        "since": search.since,
        "complete": complete,
    }
