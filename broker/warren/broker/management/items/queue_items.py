"""Items (columns) of list_queues, under RabbitMQ's names (https://www.rabbitmq.com/docs/man/rabbitmqctl.8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from warren.broker.channel.subscription import Subscription
from warren.broker.management import queue_counts
from warren.broker.management.json_values import channel_id, connection_id, name_text, queue_id, typed_table
from warren.broker.management.queue_counts import MessageCount, UnackedCounts
from warren.broker.management.request import Json
from warren.broker.model.policy.policies import merge_definitions
from warren.broker.model.stream.stream import Stream
from warren.wire import field_tables, properties
from warren.wire.content import header_payload

if TYPE_CHECKING:
    from warren.broker.connection.client_session import ClientSession
    from warren.broker.management.consumer_utilisation import ConsumerUtilisation
    from warren.broker.model.queue.queue import Queue

NODE: Final = "warren@localhost"
"""Name of the broker's only node, for items that contain a node name.

It has no real host name, because a data folder may move to another host.
"""


class QueueListing:
    """Values of one list_queues reply that are computed for all queues at once, not queue by queue.

    They are the counts of unacknowledged messages, and the consumer utilisation.
    """

    def __init__(self, unacked: dict[Queue, UnackedCounts], utilisation: ConsumerUtilisation) -> None:
        """:param unacked: counts of unacknowledged messages by queue; empty if none of `UNACKED_ITEMS` is listed."""
        self._unacked = unacked
        self.utilisation = utilisation

    def unacked(self, queue: Queue) -> UnackedCounts:
        """Return the counts of a queue's unacknowledged messages."""
        return self._unacked.get(queue) or UnackedCounts()


Item: TypeAlias = "Callable[[Queue, QueueListing], Json]"


def owner_of(queue: Queue) -> ClientSession | None:
    """Return the session to which a queue is exclusive; None if it is not exclusive."""
    return cast("ClientSession | None", queue.owner)


def _owner(queue: Queue, _: QueueListing) -> Json:
    owner = owner_of(queue)
    return "" if owner is None else connection_id(owner)


def _exclusive(queue: Queue) -> Subscription | None:
    """Return the exclusive consumer of the queue; None if there is none."""
    consumer = queue.first_consumer()
    is_sole = len(queue.consumers) == 1
    return consumer if is_sole and isinstance(consumer, Subscription) and consumer.exclusive else None


def _exclusive_pid(queue: Queue, _: QueueListing) -> Json:
    consumer = _exclusive(queue)
    return "" if consumer is None else channel_id(consumer.channel)


def _exclusive_tag(queue: Queue, _: QueueListing) -> Json:
    consumer = _exclusive(queue)
    return "" if consumer is None else name_text(consumer.tag)


def _single_active(queue: Queue) -> Subscription | None:
    sole = queue.scheduler.single_active_consumer
    return sole if isinstance(sole, Subscription) else None


def _policy(queue: Queue, _: QueueListing) -> Json:
    policy, _operator = queue.vhost.policies.queue_policies(queue)
    return "" if policy is None else policy.name


def _operator_policy(queue: Queue, _: QueueListing) -> Json:
    _policy, operator = queue.vhost.policies.queue_policies(queue)
    return "" if operator is None else operator.name


def _definition(queue: Queue, _: QueueListing) -> Json:
    return merge_definitions(*queue.vhost.policies.queue_policies(queue))


def _all(queue: Queue, listing: QueueListing) -> MessageCount:
    counts = queue_counts.count_ready(queue) + queue_counts.count_held_back(queue)
    return counts + listing.unacked(queue).all


def _ram(queue: Queue, listing: QueueListing) -> MessageCount:
    return queue_counts.count_ready_in_memory(queue) + listing.unacked(queue).in_memory


def _persistent(queue: Queue, listing: QueueListing) -> MessageCount:
    waiting = queue_counts.count_ready_persistent(queue) + queue_counts.count_held_back_persistent(queue)
    return waiting + listing.unacked(queue).persistent


def _head_timestamp(queue: Queue, _: QueueListing) -> Json:
    head = queue.ready.head()
    if head is None or not head.content:
        return ""
    try:
        stamp = properties.decode(header_payload(head.content)).get("timestamp", "")
    except field_tables.TableError:
        return ""
    return stamp if isinstance(stamp, int) else ""


def _utilisation(queue: Queue, listing: QueueListing) -> Json:
    return listing.utilisation.of(queue)


def _nodes(queue: Queue, _: QueueListing) -> Json:
    return [NODE] if queue.declared_arguments.type_name != "classic" else ""


def _no_mirrors(queue: Queue, _: QueueListing) -> Json:
    """Return the value of the items about mirrors: empty, because a single node has none."""
    return ""


QUEUE_ITEMS: Final[Mapping[str, Item]] = {
    "name": lambda queue, _: name_text(queue.name),
    "durable": lambda queue, _: queue.durable,
    "auto_delete": lambda queue, _: queue.auto_delete,
    "arguments": lambda queue, _: typed_table(queue.raw_arguments),
    "policy": _policy,
    "operator_policy": _operator_policy,
    "effective_policy_definition": _definition,
    "pid": lambda queue, _: queue_id(queue),
    "owner_pid": _owner,
    "exclusive": lambda queue, _: queue.owner is not None,
    "exclusive_consumer_pid": _exclusive_pid,
    "exclusive_consumer_tag": _exclusive_tag,
    "single_active_consumer_pid": lambda queue, _: (
        channel_id(sole.channel) if (sole := _single_active(queue)) is not None else ""
    ),
    "single_active_consumer_tag": lambda queue, _: (
        name_text(sole.tag) if (sole := _single_active(queue)) is not None else ""
    ),
    "messages_ready": lambda queue, _: queue_counts.count_lengths(queue).ready,
    "messages_unacknowledged": lambda queue, _: queue_counts.count_lengths(queue).unacknowledged,
    "messages": lambda queue, _: queue_counts.count_lengths(queue).messages,
    "messages_dlx": lambda queue, _: len(queue.pending_dead_letters),
    "message_bytes_dlx": lambda queue, _: int(queue.pending_dead_letter_bytes),
    "messages_delayed": lambda queue, _: queue.held_back_count() - len(queue.pending_dead_letters),
    "messages_ready_ram": lambda queue, _: queue_counts.count_ready_in_memory(queue).count,
    "messages_unacknowledged_ram": lambda queue, listing: listing.unacked(queue).in_memory.count,
    "messages_ram": lambda queue, listing: _ram(queue, listing).count,
    "messages_persistent": lambda queue, listing: _persistent(queue, listing).count,
    "message_bytes": lambda queue, listing: _all(queue, listing).bytes,
    "message_bytes_ready": lambda queue, _: queue_counts.count_ready(queue).bytes,
    "message_bytes_unacknowledged": lambda queue, listing: listing.unacked(queue).all.bytes,
    "message_bytes_ram": lambda queue, listing: _ram(queue, listing).bytes,
    "message_bytes_persistent": lambda queue, listing: _persistent(queue, listing).bytes,
    "head_message_timestamp": _head_timestamp,
    "disk_reads": lambda queue, _: queue_counts.disk_reads(queue),
    "disk_writes": lambda queue, _: queue_counts.disk_writes(queue),
    "backing_queue_status": lambda queue, _: queue_counts.backing_queue_status(queue) or "",
    "consumers": lambda queue, _: len(queue.consumers),
    "consumer_utilisation": _utilisation,
    "consumer_capacity": _utilisation,
    "memory": lambda queue, listing: queue_counts.memory_bytes(queue, listing.unacked(queue)),
    "slave_pids": _no_mirrors,
    "synchronised_slave_pids": _no_mirrors,
    "state": lambda queue, _: "running",
    "type": lambda queue, _: queue.declared_arguments.type_name,
    "leader": lambda queue, _: NODE if queue.declared_arguments.type_name != "classic" else "",
    "members": _nodes,
    "segments": lambda queue, _: len(queue.messages.segments) if isinstance(queue, Stream) else "",
    "online": _nodes,
}

UNACKED_ITEMS: Final = frozenset(
    {
        "messages_unacknowledged_ram",
        "messages_ram",
        "messages_persistent",
        "message_bytes",
        "message_bytes_unacknowledged",
        "message_bytes_ram",
        "message_bytes_persistent",
        "memory",
    }
)
"""Items that need all unacknowledged messages to be counted one by one."""

ITEM_ALIASES: Final = {
    "consumer": "consumers",
    **{
        name.replace("message_bytes", "messages_bytes"): name
        for name in QUEUE_ITEMS
        if name.startswith("message_bytes")
    },
}
"""Alternative item names that books and tutorials use, with the item that each one means."""
