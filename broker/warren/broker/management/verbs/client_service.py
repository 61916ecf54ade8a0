"""Implementation of the `warren ctl` commands that end and resume the service of AMQP clients while the broker runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.connection.listener import ListenError
from warren.broker.management.items.queue_items import NODE
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json, Request, RequestRefused
from warren.core.errors import ExitStatus

if TYPE_CHECKING:
    from warren.broker.management.management import Management


async def suspend_listeners(management: Management, _: Request) -> None:
    """Accept no further AMQP connections; those that are open go on, and so does the HTTP API."""
    await management.listener.suspend()


async def resume_listeners(management: Management, _: Request) -> None:
    """Accept AMQP connections again.

    :raises RequestRefused: after `stop_app`, or if an address is in use by now
    """
    if management.is_stopped:
        raise RequestRefused(f"{NODE} is stopped; `start_app` starts it", ExitStatus.FAILED)
    await _resume(management)


async def stop_app(management: Management, _: Request) -> None:
    """Accept no further AMQP connections, and close those that are open, as a broker does that stops.

    Queues and messages stay as they are, except for exclusive queues, which go with their connections.
    """
    management.is_stopped = True
    await management.shovels.stop()
    await management.listener.suspend()
    management.listener.cancel_openings()
    await management.node.end_connections()
    await management.listener.drain()


async def start_app(management: Management, _: Request) -> None:
    """Accept AMQP connections again after `stop_app`; no effect on a broker that is not stopped.

    :raises RequestRefused: if an address is in use by now
    """
    if management.is_stopped:
        await _resume(management)
        management.is_stopped = False
        management.shovels.start()


async def _resume(management: Management) -> None:
    try:
        await management.listener.resume()
    except ListenError as error:
        raise RequestRefused(str(error), ExitStatus.FAILED) from None


def restart_vhost(management: Management, request: Request) -> Json:
    """Return the text with which RabbitMQ answers for a virtual host that runs; here, each one does."""
    vhost = request.vhost(management.node)
    return f"Vhost '{name_text(vhost.name)}' is already running on node '{NODE}'"


def rotate_logs(_: Management, __: Request) -> None:
    """Refuse, as RabbitMQ 4.3 does: the log goes to standard error, for the service manager to keep.

    :raises RequestRefused: always
    """
    raise RequestRefused("This command does not rotate logs anymore [deprecated]", ExitStatus.FAILED)
