"""Loads by queues, exchanges, bindings, virtual hosts, definitions and listings; generators as in `message_loads`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pamqp import commands

from benchmarks.stalls.load_client import Control, LoadClient, binding
from tests.support.frames import QUEUE_BIND_OK, QUEUE_DELETE_OK
from tests.support.raw_client import encoded, made

QUEUE = "load"
LISTED = ("name", "messages", "consumers", "policy", "state", "memory", "arguments")


def declare_queues(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    yield
    client.declare_queues(count, durable=True)


def delete_queues(client: LoadClient, control: Control, count: int) -> Iterator[None]:
    control.make_queues(count)
    yield
    client.call_all(
        (encoded(made(commands.Queue.Delete, queue=f"queue-{number}")) for number in range(count)),
        QUEUE_DELETE_OK,
    )


def expire_queues(_: LoadClient, control: Control, count: int) -> Iterator[None]:
    """Let a policy expire this many unused queues at once."""
    control.make_queues(count)
    yield
    control("set_policy", name="expiry", pattern="^queue-", definition={"expires": 500}, apply_to="queues")
    time.sleep(1.0)


def exclusive_queues(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Close a connection that has this many exclusive queues."""
    client.declare_queues(count, exclusive=True)
    yield
    client.close()


def _declare_wide(client: LoadClient, *, durable: bool) -> None:
    client.declare_queue(QUEUE, durable=durable)
    client.declare_exchange("wide", "topic", durable=durable)


def _with_bindings(client: LoadClient, control: Control, count: int) -> None:
    """Make a durable exchange with this many bindings to one queue, by one import of definitions."""
    _declare_wide(client, durable=True)
    control.import_definitions([], [binding("wide", QUEUE, f"sensor.{number}.*") for number in range(count)])


def bind(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Make bindings that are not durable: for a durable one the reply waits for the disk."""
    _declare_wide(client, durable=False)
    yield
    client.call_all(
        (
            encoded(made(commands.Queue.Bind, queue=QUEUE, exchange="wide", routing_key=f"sensor.{number}.*"))
            for number in range(count)
        ),
        QUEUE_BIND_OK,
    )


def delete_exchange(client: LoadClient, control: Control, count: int) -> Iterator[None]:
    """Delete an exchange that has this many bindings."""
    _with_bindings(client, control, count)
    yield
    client.call(made(commands.Exchange.Delete, exchange="wide"), 1, commands.Exchange.DeleteOk)


def delete_bound_queue(client: LoadClient, control: Control, count: int) -> Iterator[None]:
    """Delete a queue that has this many bindings."""
    _with_bindings(client, control, count)
    yield
    client.delete_queue(QUEUE)


def headers_exchange(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Publish to a headers exchange with this many bindings of ten arguments each."""
    client.declare_queue(QUEUE, durable=True)
    client.declare_exchange("by-headers", "headers", durable=True)
    client.call_all(
        (
            encoded(
                made(
                    commands.Queue.Bind,
                    queue=QUEUE,
                    exchange="by-headers",
                    arguments={"x-match": "all", **{f"name-{each}": number for each in range(10)}},
                )
            )
            for number in range(count)
        ),
        QUEUE_BIND_OK,
    )
    yield
    client.fill(
        1_000,
        "by-headers",
        "",
        properties=[
            commands.Basic.Properties(delivery_mode=2, headers={f"name-{each}": number for each in range(10)})
            for number in range(100)
        ],
    )


def topic_patterns(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Publish messages with keys of 120 words to patterns with many `#`, of which none matches."""
    client.declare_queue(QUEUE, durable=True)
    client.declare_exchange("patterns", "topic", durable=True)
    for number in range(count):
        middle = ".#.".join("a" * (20 + number % 20))
        client.bind(QUEUE, "patterns", f"#.{middle}.#.b{number}")
    yield
    for number in range(20):
        client.fill(1, "patterns", ".".join(["a"] * (100 + number)))


def import_definitions(_: LoadClient, control: Control, count: int) -> Iterator[None]:
    """Import definitions of this many queues, each with a binding."""
    yield
    control.make_queues(count)


def export_definitions(_: LoadClient, control: Control, count: int) -> Iterator[None]:
    control.make_queues(count)
    yield
    control("export_definitions")


def delete_vhost(client: LoadClient, control: Control, count: int) -> Iterator[None]:
    """Delete a virtual host that has this many queues with ten messages each."""
    control("add_vhost", name="large")
    control("set_permissions", username="guest", vhost="large", configure=".*", write=".*", read=".*")
    inside = LoadClient(client.url.rstrip("/") + "/large")
    control.make_queues(count, "large", "amq.fanout")
    inside.fill(10, "amq.fanout", "")
    inside.close()
    yield
    control("delete_vhost", name="large")


def policy_on_queues(_: LoadClient, control: Control, count: int) -> Iterator[None]:
    """Set a policy that matches this many queues, and clear it."""
    control.make_queues(count)
    yield
    control("set_policy", name="limit", pattern="^queue-", definition={"max-length": 10}, apply_to="queues")
    control("clear_policy", name="limit")


def list_queues(_: LoadClient, control: Control, count: int) -> Iterator[None]:
    """List all queues ten times, one after the other."""
    control.make_queues(count)
    yield
    for _each in range(10):
        control("list_queues", items=list(LISTED))


def list_bindings(client: LoadClient, control: Control, count: int) -> Iterator[None]:
    _with_bindings(client, control, count)
    yield
    for _each in range(3):
        control("list_bindings")
