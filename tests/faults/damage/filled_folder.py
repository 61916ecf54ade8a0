"""Data folder of a broker that ran once or four times, with all that a broker stores, and what must be in it.

Each run writes a log segment of its own. The last one ends with SIGKILL or a clean stop, when nothing is left to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from pamqp.commands import Exchange

from tests.faults.damage.expected_state import ExpectedQueue, ExpectedState, QueueMessage, make_body
from tests.faults.damage.folder_files import LOG_SEGMENT, data_files
from tests.faults.damage.observed_state import definitions_of, url_of
from tests.support.blocking_client import Channel, Connection, Message
from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.streams import consume, declare_stream

OTHER = "other"
"""Second virtual host."""
FAN, TOPIC = "damage.fan", "damage.topic"
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "large": {},
    "lazy": {"x_queue_mode": "lazy"},
    "priority": {"x_max_priority": 4},
    "counted": {"x_queue_type": "quorum"},
    "rejecting": {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "rejected"},
    "rejected": {},
    "fan-1": {},
    "fan-2": {"x_queue_mode": "lazy"},
    "fan-3": {},
    f"{OTHER}:plain": {},
}
"""Queues by name, with their arguments."""
FANNED = ("fan-1", "fan-2", "fan-3")
STREAMS: dict[str, dict[str, Any]] = {
    "segmented": {"x_stream_max_segment_size_bytes": 4096},
    "single": {},
}
TAG = "reader"
"""Tag of the consumers whose positions are stored."""
ALICE, BOB = "alice", "bob"
LARGE = 150_000


class End(Enum):
    """End of the last run."""

    KILL = "SIGKILL"
    STOP = "clean stop"
    FIRST_KILL = "SIGKILL of the first run"
    """SIGKILL of the only run: SQLite has moved nothing out of its write-ahead file."""


@dataclass(frozen=True)
class FilledFolder:
    """A data folder without a broker, and what was confirmed of it."""

    path: Path
    end: End
    expected: ExpectedState


def fill_folder(path: Path, end: End) -> FilledFolder:
    """Fill a new data folder in four runs of a broker, or in one; the last one ends with `end`."""
    broker = BrokerProcess(path, *PATIENT)
    expected = ExpectedState()
    runs: tuple[tuple[Callable[[_Filling], None], End], ...]
    runs = ((_first, End.STOP), (_second, End.KILL), (_third, End.STOP), (_fourth, end))
    if end is End.FIRST_KILL:
        runs = ((_first, end),)
    for run, (fill, last) in enumerate(runs, 1):
        broker.start()
        filling = _Filling(broker, expected, run)
        fill(filling)
        filling.close()
        if last is End.STOP:
            status = broker.stop()
            assert status == 0, status
        else:
            broker.kill()
            _mark_all_redelivered(expected)
        for segment in data_files(path):
            if re.fullmatch(LOG_SEGMENT, segment):
                expected.runs.setdefault(segment, run)
    assert set(expected.runs.values()) == set(range(1, len(runs) + 1)), expected.runs
    return FilledFolder(path, end, expected)


def _mark_all_redelivered(expected: ExpectedState) -> None:
    for queue in expected.queues.values():
        queue.messages = [replace(message, redelivered=True) for message in queue.messages]


class _Filling:
    """One run: every change is applied to the broker and noted as expected when the broker has confirmed it."""

    def __init__(self, broker: BrokerProcess, expected: ExpectedState, run: int) -> None:
        self.expected = expected
        self.run = run
        self.operator = Operator(warren_ctl(broker.data_dir), broker.url, is_warren=True)
        self._broker = broker
        self._numbers = 0
        self._channels: dict[str, Channel] = {}

    def channel(self, queue: str) -> tuple[Channel, str]:
        """Return a channel to a queue's virtual host, and the queue's name there."""
        address, name = url_of(self._broker.url, queue)
        vhost = queue.rpartition(":")[0]
        if vhost not in self._channels:
            self._channels[vhost] = Connection(address).channel()
        return self._channels[vhost], name

    def declare(self, queue: str, **arguments: Any) -> None:
        channel, name = self.channel(queue)
        channel.declare(name, durable=True, **arguments)
        counts = arguments.get("x_queue_type") == "quorum"
        self.expected.queues[queue] = ExpectedQueue(counts_deliveries=counts)

    def publish(
        self, key: str, count: int, size: int = 200, *, exchange: str = "", to: tuple[str, ...] = ()
    ) -> None:
        """Publish so many persistent messages and wait for their confirms.

        :param to: queues that get the messages; none for the one named by the key.
        """
        _, name = self.channel(key)
        address, _ = url_of(self._broker.url, key)
        with Connection(address) as connection:
            channel = connection.channel()
            channel.confirm()
            for number in range(count):
                self._numbers += 1
                token = f"{exchange or key}/{self.run}-{self._numbers}"
                priority = number % 4 if key == "priority" else 0
                properties: dict[str, Any] = {"priority": priority} if priority else {}
                body = make_body(token, size + number)
                channel.publish(name, body, exchange=exchange, delivery_mode=2, **properties)
                for queue in to or (key,):
                    messages = self.expected.queues[queue].messages
                    messages.append(QueueMessage(token, priority=priority))
                    messages.sort(key=lambda message: -message.priority)
                    self.expected.published[f"{queue} {token}"] = self.run
            assert channel.settled(count) == [True] * count

    def settle(self, queue: str, *places: int, reject: bool = False) -> None:
        """Acknowledge, or reject, the messages at these places of the queue; the others come back.

        :param reject: dead-letter them to the queue `rejected`.
        """
        content = self.expected.queues[queue]
        address, name = url_of(self._broker.url, queue)
        with Connection(address) as connection:
            channel = connection.channel()
            channel.confirm()
            got = [self._get(channel, name) for _ in range(max(places) + 1)]
            for place, message in enumerate(got):
                expected = content.messages[place]
                assert message.body.startswith(expected.token.encode() + b" ")
                self.expected.settled[f"{queue} {expected.token}"] = self.run
                if place not in places:
                    channel.reject(message.tag, requeue=True)
                elif reject:
                    channel.reject(message.tag)
                else:
                    channel.ack(message.tag)
            # A confirm that follows makes the settlements safe.
            channel.publish(
                name, make_body(token := f"{queue}/{self.run}-after-{max(places)}", 50), delivery_mode=2
            )
            assert channel.settled(1) == [True]
        kept = []
        for place, old in enumerate(content.messages):
            if place in places:
                content.settled.add(old.token)
                if reject:
                    dead = QueueMessage(old.token, death=f"{queue} rejected 1")
                    self.expected.queues["rejected"].messages.append(dead)
                    self.expected.published[f"rejected {old.token}"] = self.run
            elif place < len(got):
                count = old.deliveries + content.counts_deliveries
                kept.append(replace(old, redelivered=True, deliveries=count))
            else:
                kept.append(old)
        content.messages = [*kept, QueueMessage(token)]
        content.messages.sort(key=lambda message: -message.priority)
        self.expected.published[f"{queue} {token}"] = self.run

    @staticmethod
    def _get(channel: Channel, name: str) -> Message:
        message = channel.get(name)
        assert message is not None
        return message

    def purge(self, queue: str) -> None:
        channel, name = self.channel(queue)
        channel.purge(name)
        content = self.expected.queues[queue]
        for message in content.messages:
            content.settled.add(message.token)
            self.expected.settled[f"{queue} {message.token}"] = self.run
        content.messages = []
        self.publish(queue, 1)

    def append(self, stream: str, count: int, size: int = 300) -> None:
        """Publish to a stream, each message in a chunk of its own."""
        channel, name = self.channel(stream)
        content = self.expected.streams.setdefault(stream, {})
        with Connection(url_of(self._broker.url, stream)[0]) as connection:
            channel = connection.channel()
            channel.confirm()
            for number in range(1, count + 1):
                offset = len(content)
                token = f"{stream}/{offset}"
                channel.publish(name, make_body(token, size), delivery_mode=2)
                channel.settled_until(number)
                content[offset] = token
                self.expected.next_offsets[stream] = offset + 1

    def store_position(self, stream: str, count: int) -> None:
        """Consume so many messages from the stored position and acknowledge them."""
        position = self.expected.positions.get((stream, TAG), 0)
        address, name = url_of(self._broker.url, stream)
        with Connection(address) as connection:
            channel = connection.channel()
            consume(channel, name, "first", TAG, x_stream_automatic_offset_tracking=True)
            for number, message in enumerate(channel.deliveries(count), position):
                assert int(message.headers["x-stream-offset"]) == number
                channel.ack(message.tag)
            # The confirm that follows makes the acknowledgements safe.
            other = connection.channel()
            other.confirm()
            token = f"plain/{self.run}-after-{stream}-{position}"
            other.publish("plain", make_body(token, 50), delivery_mode=2)
            assert other.settled(1) == [True]
        self.expected.queues["plain"].messages.append(QueueMessage(token))
        self.expected.published[f"plain {token}"] = self.run
        self.expected.positions[stream, TAG] = position + count

    def close(self) -> None:
        """Note the definitions, and close the connections."""
        self.expected.definitions = definitions_of(self._broker.data_dir)
        for channel in self._channels.values():
            channel.connection.close()


def _first(filling: _Filling) -> None:
    operator = filling.operator
    for user in (ALICE, BOB, "carol"):
        operator("add_user", user, f"secret of {user}")
        operator("set_permissions", user, "^a", ".*", ".*")
    filling.expected.logins = {user: f"secret-of-{user}" for user in (ALICE, BOB)}
    for user, password in filling.expected.logins.items():
        operator("change_password", user, password)
    operator("set_user_tags", ALICE, "monitoring")
    operator("set_topic_permissions", ALICE, "amq.topic", "^a", "^b")
    operator("add_vhost", OTHER)
    operator("set_permissions", "guest", ".*", ".*", ".*", "-p", OTHER)
    operator("set_policy", "limit", "^fan-", '{"max-length": 1000}')
    channel, _ = filling.channel("plain")
    channel.declare_exchange(FAN, "fanout", durable=True)
    channel.declare_exchange(TOPIC, "topic", durable=True)
    channel.call(Exchange.Bind(destination=FAN, source=TOPIC, routing_key="fan.#"), Exchange.BindOk)
    for queue, arguments in QUEUES.items():
        filling.declare(queue, **arguments)
    for queue in FANNED:
        channel.bind(queue, FAN)
    channel.bind("plain", TOPIC, "plain.*")
    channel.declare("doomed", durable=True)
    channel.publish("doomed", b"gone", delivery_mode=2)
    for stream, arguments in STREAMS.items():
        declare_stream(channel, stream, **arguments)
    for queue, count, size in (
        ("plain", 40, 1500),
        ("lazy", 10, 200),
        ("priority", 12, 200),
        ("counted", 10, 200),
        ("rejecting", 10, 200),
        (f"{OTHER}:plain", 5, 200),
    ):
        filling.publish(queue, count, size)
    filling.publish("fan", 6, exchange=FAN, to=FANNED)
    filling.settle("counted", 0, 2)
    filling.settle("counted", 1)
    filling.append("segmented", 20)
    filling.append("single", 10)


def _second(filling: _Filling) -> None:
    """Run until a SIGKILL: acknowledgements of the first run's messages, a deletion, messages larger than a block."""
    channel, _ = filling.channel("plain")
    channel.delete("doomed")
    filling.operator("delete_user", "carol")
    filling.settle("plain", 0, 1, 2, 5, 9)
    filling.settle("rejecting", 0, 3, reject=True)
    filling.publish("large", 2, LARGE)
    filling.publish("plain", 20, 1500)
    filling.publish("priority", 8)
    filling.publish("fan", 4, exchange=FAN, to=FANNED)
    filling.settle("fan-2", 0, 1)
    filling.append("segmented", 15)
    filling.store_position("segmented", 12)
    filling.store_position("single", 4)


def _third(filling: _Filling) -> None:
    filling.operator("set_policy", "limit", "^fan-", '{"max-length": 2000}')
    filling.settle("plain", 1, 4)
    filling.settle("counted", 0)
    filling.publish("plain", 20, 1500)
    filling.publish("lazy", 10)
    filling.publish("counted", 4)
    filling.purge(f"{OTHER}:plain")
    filling.publish("fan", 3, exchange=FAN, to=FANNED)
    filling.append("segmented", 15)
    filling.append("single", 5)


def _fourth(filling: _Filling) -> None:
    """Run last: changed definitions, messages and settlements of each kind."""
    channel, _ = filling.channel("plain")
    filling.declare("late")
    channel.bind("late", TOPIC, "late")
    filling.operator("set_policy", "late", "^late", '{"max-length": 500}')
    filling.publish("late", 5)
    filling.settle("rejecting", 1, reject=True)
    filling.settle("priority", 0, 3)
    filling.settle("plain", 0, 30)
    filling.publish("large", 1, LARGE)
    filling.publish("plain", 15, 1500)
    filling.publish("lazy", 5)
    filling.publish("fan", 3, exchange=FAN, to=FANNED)
    filling.append("segmented", 12)
    filling.append("single", 5)
    filling.store_position("segmented", 10)
    filling.store_position("single", 2)
    filling.publish("late", 3)
