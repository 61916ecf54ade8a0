"""Implementation of the `warren ctl` commands that report status and health of the broker."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import socket
import time
from collections.abc import Generator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from warren.broker.management import queue_counts
from warren.broker.management.items.queue_items import NODE
from warren.broker.management.json_values import name_text
from warren.broker.management.request import Json, Request, RequestRefused
from warren.broker.management.time_slices import run_in_slices
from warren.broker.management.verbs.listing import table
from warren.core.errors import ExitStatus
from warren.core.operating_system.descriptors import count_open_descriptors

if TYPE_CHECKING:
    from warren.broker.management.management import Management
    from warren.broker.model.queue.queue import Queue

LEVELS = ("debug", "info", "warning", "error", "critical", "none")
DESCRIPTOR_ALARM = "file_descriptor_limit"
"""RabbitMQ's name of the alarm that is raised while no further connection is accepted for lack of descriptors."""
DESCRIPTOR_SOURCE = "descriptor budget"
REACH_SECONDS = 2.0
"""Seconds that connecting to a listener may take; after them, the check of its port fails."""


def ping(_: Management, __: Request) -> Json:
    return "Ping succeeded"


def require_started(management: Management) -> None:
    """Check that the broker serves clients; a broker that replies does, unless an operator has stopped that.

    :raises RequestRefused: if it does not
    """
    if management.is_stopped:
        raise RequestRefused(
            f"{NODE} is stopped and accepts no clients; `start_app` starts it", ExitStatus.FAILED
        )


def check_running(management: Management, _: Request) -> Json:
    """Return a text that the broker is running.

    :raises RequestRefused: if it is stopped
    """
    require_started(management)
    return f"{NODE} is up and running"


def await_startup(management: Management, _: Request) -> None:
    """Return if the broker has started; the command asks again until it has.

    :raises RequestRefused: if it is stopped
    """
    require_started(management)


def alarms(management: Management, _: Request) -> Json:
    found = sorted(management.node.flow.alarms.items())
    if management.admission.is_full:
        found.append((DESCRIPTOR_SOURCE, DESCRIPTOR_ALARM))
    return table(["source", "resource"], [[source, resource] for source, resource in found])


def check_local_alarms(management: Management, _: Request) -> Json:
    if management.node.flow.alarms:
        raise RequestRefused(
            f"publishers are blocked: {name_text(management.node.flow.alarm)}", ExitStatus.FAILED
        )
    if management.admission.is_full:
        raise RequestRefused(
            f"new connections have to wait: all {management.admission.most_sockets} sockets are in use; "
            "raise the limit of open files",
            ExitStatus.FAILED,
        )
    delays = management.disk_delays
    if delays is not None and delays.delayed:
        raise RequestRefused(
            f"the disk has not answered for {delays.seconds:.0f} s; confirms wait for it", ExitStatus.FAILED
        )
    return f"{NODE} reported no local alarms"


def listeners(management: Management, _: Request) -> Json:
    return table(["protocol", "address"], [where.split(" at ", 1) for where in management.listeners()])


async def check_port_connectivity(management: Management, _: Request) -> Json:
    """Connect to each listener, and return a text with the number of listeners.

    :raises RequestRefused: with the first listener that accepts no connection
    """
    loop = management.node.loop
    for where in management.listeners():
        host, _colon, port = where.split(" at ", 1)[1].rpartition(":")
        host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
        try:
            await loop.run_in_executor(None, _reach, host, int(port))
        except OSError as error:
            raise RequestRefused(
                f"no connection to the listener {where}: {error}", ExitStatus.FAILED
            ) from None
    return f"Successfully connected to ports of {len(management.listeners())} listeners"


def _reach(host: str, port: int) -> None:
    socket.create_connection((host, port), REACH_SECONDS).close()


def list_unresponsive_queues(_: Management, __: Request) -> Json:
    """Return a listing without rows: all queues share the event loop that sends this reply, so all respond."""
    return table(["name"], [])


def set_log_level(_: Management, request: Request) -> None:
    level = request.text("level")
    if level not in LEVELS:
        raise RequestRefused(f"there is no log level {level}; there are: {', '.join(LEVELS)}")
    logging.getLogger("warren").setLevel(logging.CRITICAL + 10 if level == "none" else level.upper())


def environment(management: Management, _: Request) -> Json:
    """Return the settings of the broker as a JSON object of texts by name, without secrets."""
    config = management.config
    return {
        "Configuration": {
            each.name: str(getattr(config, each.name)) for each in dataclasses.fields(config) if each.repr
        }
    }


@functools.cache
def own_version() -> str:
    """Return Warren's version. It is read once: to read the metadata of the package takes milliseconds."""
    try:
        return version("warrenmq")
    except PackageNotFoundError:
        return "unknown"


def cluster_status(management: Management, _: Request) -> Json:
    """Return the status of a cluster of one node, in rabbitmqctl's sections."""
    name = management.parameters.globals.get("cluster_name", NODE)
    return {
        "Basics": {"Cluster name": name},
        "Running Nodes": {NODE: f"Warren {own_version()}"},
        "Alarms": {
            "Alarm": name_text(management.node.flow.alarm) if management.node.flow.alarm else "(none)"
        },
        "Listeners": _numbered(management),
    }


def _numbered(management: Management) -> dict[str, Json]:
    return {f"Listener {index}": where for index, where in enumerate(management.listeners(), 1)}


def waiting_totals_in_steps(queues: list[Queue]) -> Generator[None, None, tuple[int, int]]:
    """Return the number of messages in queues, and the bytes of memory that the waiting ones take.

    They are the value of a generator that yields after each queue.
    """
    messages = memory = 0
    for queue in queues:
        messages += queue_counts.count_lengths(queue).messages
        memory += int(queue.ready.memory_bytes())
        yield
    return messages, memory


async def status(management: Management, _: Request) -> Json:
    """Return version, memory, disk, totals and listeners, in rabbitmqctl's sections."""
    node, config, resources = management.node, management.config, management.resources
    queues = [queue for each in node.vhosts.values() for queue in each.vhost.queues.values()]
    log = node.log
    messages, waiting_bytes = await run_in_slices(waiting_totals_in_steps(queues))
    return {
        "Runtime": {
            "OS PID": os.getpid(),
            "Uptime (seconds)": round(time.monotonic() - management.started),
            "Warren version": own_version(),
            "Node name": NODE,
        },
        "Data directory": {
            "Node data directory": str(config.data_dir) if config.data_dir is not None else "(in memory)",
            "Log bytes not written yet": int(log.unwritten_bytes) if log is not None else 0,
        },
        "Disk": _disk(management),
        "Alarms": {"Alarm": name_text(node.flow.alarm) if node.flow.alarm else "(none)"},
        "Memory": {
            "Total memory used (bytes)": resources.memory_used,
            "Memory high watermark (bytes)": "none"
            if resources.memory_limit is None
            else resources.memory_limit,
            "Waiting messages (bytes)": waiting_bytes,
        },
        "Free Disk Space": {
            "Low free disk space watermark (bytes)": resources.disk_free_limit,
            "Free disk space (bytes)": "unknown" if resources.disk_free is None else resources.disk_free,
        },
        "File Descriptors": {
            "Total": f"{count_open_descriptors()}, limit: {management.descriptors.limit}",
            "Sockets": f"{management.admission.sockets}, limit: {management.admission.most_sockets}",
            "Unopened connections": f"{management.admission.unopened}, limit: {management.admission.most_unopened}",
            "Accepting connections": "yes" if management.admission.accepting else "no",
        },
        "Totals": {
            "Connection count": len(node.connections),
            "Channel count": sum(len(connection.channels) for connection in node.connections),
            "Queue count": len(queues),
            "Message count": messages,
            "Virtual host count": len(node.vhosts),
        },
        "Event loop": _event_loop(management),
        "Listeners": _numbered(management),
    }


def _disk(management: Management) -> dict[str, Json]:
    """Return for how long the disk has not answered; without a data folder nothing waits for one."""
    delays = management.disk_delays
    if delays is None:
        return {"Seconds without answer": 0}
    return {
        "Seconds without answer": round(delays.seconds, 1),
        "Delays": delays.delays,
        "Longest delay (seconds)": round(delays.longest, 1),
    }


def _event_loop(management: Management) -> dict[str, Json]:
    """Return the figures of the stall monitor; on the event loop of an embedding program nothing is measured."""
    stalls = management.stalls
    if stalls is None:
        return {"Stall threshold (ms)": 0}
    return {
        "Stall threshold (ms)": stalls.threshold,
        "Stalls": stalls.stalls,
        "Stalled (ms)": round(stalls.stalled_seconds * 1000),
        "Longest stall (ms)": round(stalls.longest_stall * 1000),
        "Longest turn (ms)": round(stalls.longest_turn * 1000),
    }
