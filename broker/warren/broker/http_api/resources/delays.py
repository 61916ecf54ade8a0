"""Delays that wait on the broker: in delayed exchanges, for delayed retries, and in queues whose messages expire.

Timers and sagas of the patterns are in stores of their own (Redis, PostgreSQL, SQLite), which a broker does not know.
"""

from __future__ import annotations

from collections.abc import Generator

from warren.broker.http_api.call import Call, Response
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json
from warren.broker.management.time_slices import run_in_slices
from warren.broker.model.queue.queue import Queue
from warren.broker.model.vhost.declarations import Declarations


async def list_all(call: Call) -> Response:
    """List the delays that wait in all virtual hosts."""
    return await _list(call.all_visible())


async def list_in_vhost(call: Call) -> Response:
    """List the delays that wait in one virtual host."""
    return await _list([call.visible()])


async def _list(hosts: list[Declarations]) -> Response:
    def collect() -> Generator[None, None, list[Json]]:
        found: list[Json] = []
        for topology in hosts:
            vhost = topology.vhost
            for exchange in list(vhost.exchanges.values()):
                if exchange.delay_queue is not None:
                    waiting = exchange.delay_queue.ready
                    found.append(
                        _delay(
                            "exchange",
                            vhost.name,
                            exchange.name,
                            int(waiting.count),
                            int(waiting.next_expiry()),
                        )
                    )
                yield
            for queue in list(vhost.queues.values()):
                found += _of_queue(queue)
                yield
        return found

    return Response(body=await run_in_slices(collect()))


def _of_queue(queue: Queue) -> list[Json]:
    """Return the delays of a queue: its delayed retries, and its messages if they wait for their expiry."""
    found: list[Json] = []
    vhost = queue.vhost
    if queue.is_stream or queue.owner is not None:
        return found
    retries = queue.delayed_retries
    if retries is not None:
        ahead = vhost.clock.wall() - vhost.clock.now()
        due = round((retries.waiting[0][0] + ahead) * 1000) if retries.waiting else 0
        found.append(_delay("retry", vhost.name, queue.name, len(retries), due))
    if queue.arguments.dead_letter_exchange is not None and not queue.consumers:
        head = int(queue.ready.next_expiry())
        if head or queue.message_ttl >= 0:
            found.append(_delay("expiry", vhost.name, queue.name, int(queue.ready.count), head))
    return found


def _delay(kind: str, vhost: bytes, name: bytes, count: int, due: int) -> Json:
    return {
        "kind": kind,
        "vhost": name_text(vhost),
        "name": name_text(name),
        "messages": count,
        "next_due_at": due or None,
    }
