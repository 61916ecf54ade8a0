"""Dead-lettering: a message that a queue is done with goes to the queue's dead letter exchange, with its history.

Rules: https://www.rabbitmq.com/docs/dlx and, for the strategy at-least-once,
https://www.rabbitmq.com/docs/quorum-queues#dead-lettering. The removal and all copies are one atomic record of the log.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from warren.broker.model.deduplication import DUPLICATE
from warren.broker.model.exchange.delayed import release_delayed_message
from warren.broker.model.exchange.headers import stored_keys
from warren.broker.model.message import Message
from warren.broker.model.message_codec import message_mark
from warren.core.capture_events import DEAD_LETTERED, DROPPED
from warren.wire import field_tables
from warren.wire.content import body_payload, header_payload, join_content
from warren.wire.properties import Properties, decode, encode

if TYPE_CHECKING:
    from warren.broker.model.clock import Timer
    from warren.broker.model.queue.queue import Queue
    from warren.broker.model.vhost.vhost import VirtualHost

logger = logging.getLogger(__name__)

COUNTED: Final = len(field_tables.join({"count": field_tables.long_field(0)}))
"""Where in an entry of x-death the count ends, a 64-bit number, and the rest begins."""

RETRY_SECONDS: Final = 1.0
"""How often a kept-aside dead letter is tried again."""

RETRY_SLICE: Final = 100
"""How many of a queue are tried before the loop gets its turn: about 5 ms."""

REASONS: Final = ("rejected", "expired", "maxlen", "delivery_limit")


class DeadLettering:
    """The dead-lettering of one virtual host."""

    def __init__(self, vhost: VirtualHost) -> None:
        self.vhost = vhost
        self.backlog: deque[tuple[Queue, list[Message], str]] = deque()
        self.busy = False
        self.queues_with_pending: dict[Queue, bool] = {}
        """The queues that keep letters aside."""
        self.timer: Timer | None = None
        self.dropped = 0
        """Messages that ended here: no dead letter exchange, none that routes, a cycle, or a target that refused."""

    def dead_letter(self, queue: Queue, messages: list[Message], reason: str) -> None:
        """The queue is done with these messages, for this reason; they are no longer in it."""
        self.backlog.append((queue, messages, reason))
        self.process()

    def process(self) -> None:
        if self.busy:
            # A copy overflowed its target: that is the next piece of work, not a deeper call.
            return
        self.busy = True
        try:
            while self.backlog:
                source, buried, why = self.backlog.popleft()
                for message in buried:
                    self.send(source, message, why)
        finally:
            self.busy = False

    def defer(self) -> None:
        """What is buried from now on waits: a record of the log is being put together. Ends with `release`."""
        self.busy = True

    def resume(self) -> None:
        self.busy = False
        self.process()

    def send(self, queue: Queue, message: Message, reason: str) -> None:
        """Transfer one; one that cannot be must not keep the others from it."""
        try:
            self.transfer(queue, message, reason)
        except Exception:
            logger.exception("event=internal_error queue=%r", queue.name.decode(errors="replace"))
            self.drop(queue, message, reason, "an internal error")

    def transfer(self, queue: Queue, message: Message, reason: str) -> None:
        vhost = self.vhost
        arguments = queue.arguments
        if queue.delayed_exchange is not None:
            release_delayed_message(queue, queue.delayed_exchange, message)
            return
        if queue.stored_window is not None:
            queue.stored_window.remove(message)
            if message.stored:
                queue.remove_from_log(message)
            return
        if arguments.dead_letter_exchange is None:
            self.drop(queue, message, reason, "")
            return
        exchange = vhost.exchanges.get(arguments.dead_letter_exchange)
        key = arguments.dead_letter_routing_key
        # A history may be long. Only a headers exchange could be bound to what it says.
        by_message = exchange is not None and vhost.routes_by_message(exchange)
        properties = decode(header_payload(message.content), None if by_message else "x-death")
        letter = self.make_dead_letter(queue, message, reason, properties)
        targets: list[Queue] = []
        if exchange is not None:
            found = vhost.find_queues(
                exchange, dead_letter_keys(letter, key, properties), properties.headers, letter
            )
            if found is DUPLICATE:
                self.drop(queue, message, reason, "it has been there before")
                return
            targets = found if reason == "rejected" else exclude_cycles(found, letter)
            if found and not targets:
                self.drop(queue, message, reason, "it would go round in a cycle")
                return
        if arguments.at_least_once and (
            not targets
            or any(target.rejects_publishes and target.would_overflow(letter) for target in targets)
        ):
            self.hold_for_retry(queue, message, reason)
            return
        if not targets:
            name = arguments.dead_letter_exchange.decode(errors="replace")
            self.drop(
                queue, message, reason, f"exchange '{name}' did not route key {key or message.routing_key!r}"
            )
            return
        if vhost.transfer(queue, message, targets, letter):
            self.record_drop(queue, message, reason, "a full queue refused its copy")
        elif queue.capture is not None:
            queue.capture.ended(DEAD_LETTERED, queue, message, reason)

    def drop(self, queue: Queue, message: Message, reason: str, why: str) -> None:
        self.record_drop(queue, message, reason, why)
        if message.stored:
            queue.remove_from_log(message)

    def record_drop(self, queue: Queue, message: Message, reason: str, why: str) -> None:
        self.dropped += 1
        if queue.capture is not None:
            queue.capture.ended(DROPPED, queue, message, reason)
        if why:
            logger.info(
                "event=dead_letter_dropped queue=%r reason=%s why=%r",
                queue.name.decode(errors="replace"),
                reason,
                why,
            )

    # -- at least once

    def hold_for_retry(self, queue: Queue, message: Message, reason: str) -> None:
        if message.stored and queue.log is not None and queue.queue_log is not None:
            mark = message_mark(message, REASONS.index(reason) + 1)
            queue.log.record_delivery_count(queue.queue_log, message.sequence, mark)
        queue.pending_dead_letters.append((message, reason))
        queue.pending_dead_letter_bytes += message.body_size
        self.queues_with_pending[queue] = True
        self.retry_in(RETRY_SECONDS)

    def retry_in(self, seconds: float) -> None:
        if self.timer is None:
            self.timer = self.vhost.clock.call_at(self.vhost.clock.now() + seconds, self.retry)

    def stop(self) -> None:
        """Retry no more: the broker stops."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def retry(self) -> None:
        """Try each queue's oldest again. What fails goes behind the rest, so that all have their turn."""
        queues = [queue for queue in self.queues_with_pending if not queue.deleted]
        self.queues_with_pending.clear()
        delay = RETRY_SECONDS
        for queue in queues:
            before = len(queue.pending_dead_letters)
            for _ in range(min(before, RETRY_SLICE)):
                message, reason = queue.pending_dead_letters.popleft()
                queue.pending_dead_letter_bytes -= message.body_size
                self.dead_letter(queue, [message], reason)
            if queue.pending_dead_letters:
                self.queues_with_pending[queue] = True
                if len(queue.pending_dead_letters) < before:
                    delay = 0.0
        self.timer = None
        if self.queues_with_pending:
            self.retry_in(delay)

    # -- the letter

    def make_dead_letter(self, queue: Queue, message: Message, reason: str, original: Properties) -> Message:
        """The message as the dead letter exchange gets it."""
        properties = Properties(original)
        headers = dict(original.headers)
        override = queue.arguments.dead_letter_routing_key
        keys = [message.routing_key, *stored_keys(headers, "CC")]
        if override is not None:
            headers.pop("CC", None)
        headers.pop("BCC", None)
        record_death(
            headers,
            interpreted=message.dead_lettered,
            queue=queue.name,
            reason=reason,
            time=int(self.vhost.clock.now()),
            exchange=message.exchange,
            keys=keys,
            expiration=properties.data("expiration"),
            says_last=self.vhost.compat.sets_last_death_headers,
        )
        properties.pop("expiration", None)
        properties["headers"] = headers
        body = body_payload(message.content)
        letter = Message(
            queue.arguments.dead_letter_exchange or b"",
            message.routing_key if override is None else override,
            join_content(message.channel, encode(properties, len(body)), body),
            len(body),
            message.channel,
        )
        letter.priority = message.priority
        letter.persistent = message.persistent
        letter.dead_lettered = True
        return letter


def dead_letter_keys(letter: Message, override: bytes | None, original: Properties) -> list[bytes]:
    """Where a letter goes: by the queue's key alone, or by all that the message was published with."""
    if override is not None:
        return [override]
    return [
        letter.routing_key,
        *(key for name in ("CC", "BCC") for key in stored_keys(original.headers, name)),
    ]


def record_death(
    headers: dict[str, field_tables.Field],
    *,
    interpreted: bool,
    queue: bytes,
    reason: str,
    time: int,
    exchange: bytes,
    keys: list[bytes],
    expiration: bytes | None,
    says_last: bool,
) -> None:
    """Put this death at the head of x-death; one entry a queue and reason, its count raised when it repeats.

    What a client published as x-death is data and no history (RabbitMQ 4.0), and is replaced.
    """
    deaths: list[bytes] = []
    if interpreted and "x-death" in headers:
        deaths = split_deaths(headers["x-death"])
    name = decode_name(queue)
    same = death_key(name, reason)
    known = [death for death in deaths if death.startswith(same, COUNTED)]
    if known:
        deaths.remove(known[0])
        count = int.from_bytes(known[0][COUNTED - 8 : COUNTED])
        death = field_tables.join({"count": field_tables.long_field(count + 1)}) + known[0][COUNTED:]
    else:
        fields = {
            "time": field_tables.field_of(field_tables.Timestamp(time)),
            "exchange": field_tables.field_of(decode_name(exchange)),
            "routing-keys": field_tables.field_of([decode_name(key) for key in keys]),
        }
        if expiration is not None:
            fields["original-expiration"] = field_tables.field_of(decode_name(expiration))
        death = field_tables.join({"count": field_tables.long_field(1)}) + same + field_tables.join(fields)
    deaths.insert(0, death)
    headers["x-death"] = join_deaths(deaths)
    last = {"reason": reason, "queue": name, "exchange": decode_name(exchange)}
    for part, value in last.items():
        if not interpreted or f"x-first-death-{part}" not in headers:
            headers[f"x-first-death-{part}"] = field_tables.field_of(value)
        if says_last:
            headers[f"x-last-death-{part}"] = field_tables.field_of(value)


def exclude_cycles(targets: list[Queue], letter: Message) -> list[Queue]:
    """The targets that the letter does not reach for a second time by expiry and overflow alone."""
    deaths = split_deaths(decode(header_payload(letter.content), "x-death").headers["x-death"])
    rejected = field_tables.join({"reason": field_tables.field_of("rejected")})
    left = []
    for target in targets:
        name = decode_name(target.name)
        here = tuple(death_key(name, reason) for reason in REASONS)
        places = [index for index, death in enumerate(deaths) if death.startswith(here, COUNTED)]
        if places and not any(death.startswith(rejected, COUNTED) for death in deaths[: places[0] + 1]):
            continue
        left.append(target)
    return left


# The entries of x-death stay encoded, because each death would else cost as much as all before it. The broker has written
# them itself: each begins with its count, reason and queue.


def death_key(queue: str, reason: str) -> bytes:
    """What an entry of this queue and reason has after its count."""
    return field_tables.join({"reason": field_tables.field_of(reason), "queue": field_tables.field_of(queue)})


def split_deaths(field: field_tables.Field) -> list[bytes]:
    """The encoded entries of x-death."""
    deaths: list[bytes] = []
    data, position = field.raw, 5
    while position < len(data):
        size = int.from_bytes(data[position + 1 : position + 5])
        deaths.append(data[position + 5 : position + 5 + size])
        position += 5 + size
    return deaths


def join_deaths(deaths: list[bytes]) -> field_tables.Field:
    items = b"".join(b"F" + len(death).to_bytes(4) + death for death in deaths)
    return field_tables.Field("A", None, b"A" + len(items).to_bytes(4) + items)


def decode_name(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
