"""Implementation of the `warren ctl` commands that act on queues, connections and the broker itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.configuration.sizes import parse_size
from warren.broker.management.json_values import connection_id
from warren.broker.management.request import Json, Request, RequestRefused
from warren.broker.operations import queues as queue_operations
from warren.broker.operations.waiting import result_of
from warren.broker.process_memory import available_memory
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.connection.client_session import ClientSession
    from warren.broker.management.management import Management


async def purge_queue(management: Management, request: Request) -> None:
    await result_of(queue_operations.purge_queue(request.principal(management.node), request.data("queue")))


async def delete_queue(management: Management, request: Request) -> Json:
    name = request.data("queue")
    operator = request.principal(management.node)
    deletion = queue_operations.delete_queue(
        operator, name, if_unused=request.flag("if_unused"), if_empty=request.flag("if_empty")
    )
    count = await result_of(deletion)
    if count is None:
        raise RequestRefused(f"no {operator.declarations.describe('queue', name)}")
    return f"Queue was successfully deleted with {count} ready messages"


def _close(sessions: list[ClientSession], reason: str) -> None:
    error = AmqpError(Reply.CONNECTION_FORCED, reason)
    for session in sessions:
        session.shut_down(error)


def close_connection(management: Management, request: Request) -> None:
    """Close one connection with 320 CONNECTION_FORCED; the request has its identifier (`pid` of list_connections)."""
    name = request.text("pid")
    found = [each for each in management.node.connections if connection_id(each) == name]
    if not found:
        raise RequestRefused(f"no connection {name}; `list_connections pid name` shows which there are")
    _close(found, request.text("reason"))


def close_all_connections(management: Management, request: Request) -> Json:
    """Close the connections of one virtual host, or of all; return a text with the number of closed ones.

    The argument `limit` of the request is the most connections to close; 0 is no limit.
    """
    limit = request.number("limit", 0)
    found = list(management.node.connections)
    if not request.flag("global"):
        found = [each for each in found if each.vhost == request.vhost_name()]
    found = found[:limit] if limit > 0 else found
    _close(found, request.text("reason"))
    return f"Closed {len(found)} connections"


def close_all_user_connections(management: Management, request: Request) -> Json:
    user = request.data("user")
    found = [each for each in management.node.connections if each.user == user]
    _close(found, request.text("reason"))
    return f"Closed {len(found)} connections"


def set_vm_memory_high_watermark(management: Management, request: Request) -> None:
    """Set the memory limit: a fraction of the available memory (0 blocks publishers), or `absolute` and a size."""
    words = request.texts("limit")
    try:
        if words[:1] == ["absolute"] and len(words) == 2:
            limit = parse_size(words[1])
        elif len(words) == 1 and 0 <= float(words[0]) <= 1:
            limit = int(float(words[0]) * available_memory())
        else:
            raise ValueError
    except ValueError:
        raise RequestRefused(
            f"{' '.join(words)!r} is not a limit; write a fraction between 0.0 and 1.0, or absolute and a size such as 1GB"
        ) from None
    management.resources.memory_limit = limit


def set_disk_free_limit(management: Management, request: Request) -> None:
    """Set the limit of free disk space: a size, or `mem_relative` and a factor of the available memory."""
    words = request.texts("limit")
    try:
        if words[:1] == ["mem_relative"] and len(words) == 2 and float(words[1]) >= 0:
            limit = int(float(words[1]) * available_memory())
        elif len(words) == 1:
            limit = parse_size(words[0])
        else:
            raise ValueError
    except ValueError:
        raise RequestRefused(
            f"{' '.join(words)!r} is not a limit; write a size such as 50MB, or mem_relative and a factor"
        ) from None
    management.resources.disk_free_limit = limit


def shutdown(management: Management, _: Request) -> Json:
    """Stop the broker gracefully, as SIGTERM does, after the reply to this request: the returned text.

    :raises RequestRefused: if the broker is embedded in another program
    """
    if management.on_shutdown is None:
        raise RequestRefused("this broker is embedded in another program; stop that program")
    management.node.loop.call_soon(management.on_shutdown)
    return "The broker stops"
