"""Messages of a queue, browsed without consuming them, and deleted, moved or replayed one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Final

from warren.broker.http_api.api_error import ApiError, bad_request, object_not_found
from warren.broker.http_api.call import Call, Response
from warren.broker.http_api.messages.letter_edit import LetterEdit
from warren.broker.http_api.messages.message_actions import Action, Move, Replay, perform
from warren.broker.http_api.messages.message_filter import NAMES, MessageFilter
from warren.broker.http_api.messages.message_ids import MessageId
from warren.broker.http_api.messages.queue_browser import (
    BEFORE_ALL,
    STEP,
    Position,
    dead_letters_after,
    delayed_after,
    position_of,
    ready_after,
    retries_after,
    unacknowledged_after,
)
from warren.broker.http_api.messages.shown_message import MOST_PAYLOAD, PAYLOAD, bounded, shown_message
from warren.broker.http_api.messages.stream_page import StoredMessage, read_stream
from warren.broker.http_api.resources.exchanges import exchange_name
from warren.broker.http_api.resources.queues import find
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_in_slices
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import Queue
from warren.broker.model.stream.stream import Stream
from warren.broker.operations.messages import exchange_to_browse, queue_to_browse
from warren.broker.operations.publishing import exchange_to_publish_to

STATES: Final = ("ready", "unacknowledged", "retry", "dead-lettering")
"""States of messages that a request may ask for, other than those of streams and of delayed exchanges."""
MOST_SHOWN: Final = 500
"""Most messages of one page."""
MOST_SCANNED: Final = 10_000
"""Messages after which a page ends, though the filter has accepted too few."""
MOST_BYTES: Final = 4 << 20
"""Bytes of shown payloads after which a page ends."""
MOST_SECONDS: Final = 10.0
"""Seconds after which a page ends."""
MOST_CHANGED: Final = 10_000
"""Most messages that one request deletes, moves or replays."""
MOST_IDS: Final = 1000
"""Most ids in one request."""

Found = tuple[Position, Message, dict[str, Json]]
"""A message of a page: its position, the message with its content, and what else is to be shown of it."""


class Page:
    """Page of messages that a filter accepts."""

    def __init__(self, call: Call, queue: Queue) -> None:
        query = call.query
        self.queue = queue
        self.filter = MessageFilter.parse(query)
        self.limit = bounded(query.get("limit"), "limit", 50, MOST_SHOWN, 1)
        self.truncate = bounded(query.get("truncate"), "truncate", PAYLOAD, MOST_PAYLOAD)
        self.shown: list[Json] = []
        self.scanned = 0
        self.bytes = 0
        self.end = time.monotonic() + MOST_SECONDS

    @property
    def is_full(self) -> bool:
        """True if no further message is to be looked at."""
        return (
            len(self.shown) >= self.limit
            or self.scanned >= MOST_SCANNED
            or self.bytes >= MOST_BYTES
            or time.monotonic() >= self.end
        )

    def add(self, message: Message, identity: str, state: str, extra: dict[str, Json]) -> None:
        """Look at one message, and show it if the filter accepts it."""
        self.scanned += 1
        if self.filter.accepts(message):
            shown = shown_message(message, identity, state, self.truncate)
            self.bytes += len(shown["payload"])
            self.shown.append(shown | extra)

    def response(self, following: str | None, total: int) -> Response:
        """Return the page.

        :param following: id of the last message that was looked at; None if none is left.
        :param total: number of messages in this state.
        """
        return Response(
            body={"messages": self.shown, "next": following, "scanned": self.scanned, "total": total}
        )


def readable(call: Call) -> Queue:
    """Return the queue of the path, which the caller may read.

    :raises ApiError: 404 if there is none of that name.
    :raises AmqpError: 403 without the permission, 405 if it is exclusive to a connection.
    """
    principal = call.principal()
    return queue_to_browse(principal, find(call, principal.declarations).name)


async def browse(call: Call) -> Response:
    """Show a page of messages, and leave them as they are."""
    queue = readable(call)
    page = Page(call, queue)
    if isinstance(queue, Stream):
        return await _browse_stream(call, queue, page)
    state = call.query.get("state", "ready")
    if state not in STATES:
        raise bad_request(f"state must be one of {', '.join(STATES)}")

    def next_messages(after: Position) -> Generator[None, None, list[Found]]:
        if state == "ready":
            ready = yield from ready_after(queue, after, STEP)
            return [(position_of(queue, message), message, {}) for message in ready]
        if state == "retry":
            retries = yield from retries_after(queue, after, STEP)
            return [((rank, int(each.sequence)), each, {"due_at": due}) for rank, due, each in retries]
        if state == "dead-lettering":
            letters = yield from dead_letters_after(queue, after, STEP)
            return [((0, int(each.sequence)), each, {"reason": reason}) for reason, each in letters]
        channels = (
            channel
            for connection in list(call.node.connections)
            for channel in list(connection.channels.values())
        )
        held = yield from unacknowledged_after(queue, channels, after, STEP)
        return [
            (
                (0, int(message.sequence)),
                message,
                {
                    "consumer": {
                        "consumer_tag": name_text(tag),
                        "channel": f"{channel.connection.shown_name()} ({int(channel.number)})",
                        "connection": channel.connection.shown_name(),
                        "user": name_text(channel.connection.user),
                    }
                },
            )
            for channel, tag, message in held
        ]

    totals = {
        "ready": lambda: int(queue.ready.count),
        "unacknowledged": lambda: int(queue.unacked),
        "retry": lambda: len(queue.delayed_retries) if queue.delayed_retries is not None else 0,
        "dead-lettering": lambda: len(queue.pending_dead_letters),
    }
    return await _fill(call, page, state, next_messages, totals[state])


async def browse_delayed(call: Call) -> Response:
    """Show a page of the messages that a delayed exchange holds back, those first whose delay ends first."""
    principal, name = call.principal(), exchange_name(call)
    queue = principal.vhost.exchanges[name].delay_queue if name in principal.vhost.exchanges else None
    if queue is None:
        raise object_not_found()
    exchange_to_browse(principal, name)

    def next_messages(after: Position) -> Generator[None, None, list[Found]]:
        delayed = yield from delayed_after(queue, after, STEP)
        return [
            ((int(each.expires), int(each.sequence)), each, {"due_at": int(each.expires), "expires_at": None})
            for each in delayed
        ]

    return await _fill(call, Page(call, queue), "delayed", next_messages, lambda: int(queue.ready.count))


async def _fill(
    call: Call,
    page: Page,
    state: str,
    next_messages: Callable[[Position], Generator[None, None, list[Found]]],
    total: Callable[[], int],
) -> Response:
    """Fill a page with messages behind the one that the query names."""
    queue = page.queue

    def fill() -> Generator[None, None, str | None]:
        position = _start(queue, call.query.get("after"))
        while not queue.deleted:
            found = yield from next_messages(position)
            if not found:
                return None
            for position, message, extra in found:
                page.add(message, str(MessageId.of(queue, *position)), state, extra)
                if page.is_full:
                    return str(MessageId.of(queue, *position))
                yield
        raise object_not_found()

    return page.response(await run_in_slices(fill()), total())


def _start(queue: Queue, after: Json) -> Position:
    """Return the position behind which a page begins.

    :raises ApiError: 400 for an id that is none; 404 for one of another queue, or from before a restart.
    """
    if after is None:
        return BEFORE_ALL
    identity = MessageId.parse(after)
    if not identity.names_message_of(queue):
        raise object_not_found()
    return identity.rank, identity.sequence


async def _browse_stream(call: Call, stream: Stream, page: Page) -> Response:
    """Show a page of a stream: from `offset`, which is a number, `first` or `last`, or behind the message `after`."""
    log = stream.messages
    most = 10**18
    asked, after = call.query.get("offset", "first"), call.query.get("after")
    if after is not None:
        offset = bounded_offset(after, "after", most) + 1
    elif asked in ("first", "last"):
        offset = int(log.first) if asked == "first" else max(int(log.first), int(log.committed) - page.limit)
    else:
        offset = bounded_offset(asked, "offset", most)
    while True:
        found, following = await read_stream(stream, offset)
        if stream.deleted:
            raise object_not_found()
        if not found and following <= offset:
            return page.response(None, int(stream.message_count()))

        def show(found: list[StoredMessage] = found) -> Generator[None, None, int | None]:
            for each in found:
                extra: dict[str, Json] = {"offset": each.offset, "stored_at": each.at}
                page.add(each.message, str(each.offset), "stored", extra)
                if page.is_full:
                    return each.offset
                yield
            return None

        last = await run_in_slices(show())
        if last is not None:
            return page.response(str(last), int(stream.message_count()))
        offset = following


def bounded_offset(text: str, name: str, most: int) -> int:
    """Return an offset of a stream.

    :raises ApiError: 400 if it is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) < most):
        raise bad_request(f"{name} must be an offset, first or last")
    return int(text)


# -- deletion, move and replay


async def delete(call: Call) -> Response:
    """Delete the selected ready messages."""
    queue = _changeable(call)
    return await _act(call, Action(call, queue), call.body())


async def move(call: Call) -> Response:
    """Move the selected ready messages to an exchange with a routing key, or to a queue."""
    queue = _changeable(call)
    body = call.body()
    if ("queue" in body) == ("exchange" in body):
        raise bad_request("name either a queue, or an exchange and a routing_key, to move messages to")
    principal = call.principal()
    if "queue" in body:
        exchange, key = b"", _name(body, "queue")
        if key not in principal.vhost.queues:
            raise ApiError(
                404, "not_found", "there is no queue of the name that the messages are to be moved to"
            )
    else:
        exchange, key = _name(body, "exchange"), _name(body, "routing_key")
    if exchange == b"amq.default":
        exchange = b""
    if exchange not in principal.vhost.exchanges:
        raise ApiError(
            404, "not_found", "there is no exchange of the name that the messages are to be moved to"
        )
    exchange_to_publish_to(principal.authorization, principal.vhost, exchange)
    call.refuse_alarm()
    return await _act(call, Move(call, queue, exchange, key), body)


async def replay(call: Call) -> Response:
    """Publish the selected dead letters to the queues in which they died, and remove them."""
    queue = _changeable(call)
    body = call.body()
    edit = None
    if "edit" in body:
        ids = body.get("ids")
        if not isinstance(ids, list) or len(ids) != 1:
            raise bad_request("an edit needs ids with the id of one message")
        edit = LetterEdit.parse(body["edit"])
    call.refuse_alarm()
    return await _act(call, Replay(call, queue, call.boolean(body, "to_exchange"), edit), body)


def _changeable(call: Call) -> Queue:
    queue = readable(call)
    if isinstance(queue, Stream):
        raise bad_request(f"{call.name('queue')} is a stream; its messages leave it by its retention only")
    return queue


def _name(body: dict[str, Json], part: str) -> bytes:
    value = body.get(part, "")
    if not isinstance(value, str):
        raise bad_request(f"{part} must be a text")
    name = value.encode("utf-8", "surrogateescape")
    if len(name) > 255:
        raise bad_request(f"{part} is longer than 255 bytes")
    return name


async def _act(call: Call, action: Action, body: dict[str, Json]) -> Response:
    """Carry out an action on the messages that the body selects: `ids`, `filter`, or `all`."""
    queue = action.queue
    if sum(name in body for name in ("ids", "filter", "all")) != 1:
        raise bad_request("name the messages by one of ids, filter and all")
    selected: list[MessageId] | MessageFilter
    if "ids" in body:
        ids = body["ids"]
        if not isinstance(ids, list) or len(ids) > MOST_IDS:
            raise bad_request(f"ids must be a list of at most {MOST_IDS} ids")
        selected = [MessageId.parse(each) for each in dict.fromkeys(map(_hashable, ids))]
    elif "filter" in body:
        if not isinstance(body["filter"], dict):
            raise bad_request("filter must be a JSON object")
        unknown = body["filter"].keys() - set(NAMES)
        selected = MessageFilter.parse(body["filter"])
        if unknown or selected == MessageFilter():
            raise bad_request(f"filter must have one or more of {', '.join(NAMES)}, and nothing else")
    else:
        if body["all"] is not True:
            raise bad_request("all must be true")
        selected = MessageFilter()
    outcome = await perform(
        action,
        selected,
        _start(queue, body.get("after")),
        _limit(body.get("limit")),
        _rate(body.get("rate")),
        call.boolean(body, "dry_run"),
    )
    if queue.deleted:
        raise object_not_found()
    return Response(body=outcome.as_json(queue))


def _hashable(value: Json) -> Json:
    return value if isinstance(value, str) else ""


def _limit(value: Json) -> int:
    if value is None:
        return MOST_CHANGED
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_CHANGED:
        raise bad_request(f"limit must be a number from 1 to {MOST_CHANGED}")
    return value


def _rate(value: Json) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.1 <= value <= 1e6:
        raise bad_request("rate must be a number of messages a second, from 0.1 to 1000000")
    return float(value)
