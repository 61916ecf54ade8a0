"""Publisher confirms: one ack or nack for every publish, in order, and not before the message is on the disk."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pamqp.commands import Basic
from pamqp.commands import Channel as ChannelClass

from tests.broker.conftest import Connect
from tests.support.blocking_client import Channel, Connection, Message
from tests.support.frames import BASIC_ACK, confirm
from tests.support.in_process_broker import InProcessBroker
from tests.support.queue_assertions import holds
from warren.broker.store.file_system.os_files import OsFiles


def test_each_publish_is_confirmed_once(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.confirm()
    for number in range(1000):
        channel.publish(queue, b"%d" % number)
    assert channel.settled(1000) == [True] * 1000


def test_sequence_numbers_start_with_confirm_select(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.publish(queue, b"before")
    channel.confirm()
    channel.publish(queue, b"after")
    found = channel.next_method(Basic.Ack)
    assert (found.delivery_tag, found.multiple) == (1, False)


def test_a_second_confirm_select_keeps_the_sequence_numbers(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.confirm()
    channel.publish(queue)
    assert channel.settled(1) == [True]
    channel.confirm()
    channel.publish(queue)
    assert channel.next_method(Basic.Ack).delivery_tag == 2


def test_a_burst_is_confirmed_with_few_frames(inprocess: InProcessBroker) -> None:
    with Connection(inprocess.url) as connection:
        channel = connection.channel()
        queue = channel.declare(exclusive=True)
        channel.confirm()
        connection.raw.send_bytes(b"".join(channel.encoded(queue, b"x") for _ in range(500)))
        acks, last = 0, 0
        while last < 500:
            found = connection.raw.expect_frame(BASIC_ACK)
            tag, multiple = confirm(found)
            assert tag > last
            assert multiple or tag == last + 1
            acks, last = acks + 1, tag
        assert acks <= 10


def test_an_unroutable_message_is_confirmed(channel: Channel, name: str) -> None:
    channel.confirm()
    for _ in range(10):
        channel.publish(name, b"to nobody")
    assert channel.settled(10) == [True] * 10


def test_a_return_precedes_its_confirm(channel: Channel, name: str) -> None:
    queue = channel.declare(exclusive=True)
    channel.confirm()
    channel.publish(queue, b"one", mandatory=True)
    channel.publish(name, b"two", mandatory=True)
    channel.publish(queue, b"three", mandatory=True)
    last = 0
    returned = False
    while last < 3:
        event = channel.next()
        if isinstance(event, Message):
            assert isinstance(event.carrier, Basic.Return)
            assert (event.carrier.reply_code, event.carrier.reply_text, event.body) == (
                312,
                "NO_ROUTE",
                b"two",
            )
            returned = True
        else:
            assert isinstance(event, Basic.Ack)
            assert event.delivery_tag is not None
            last = max(last, event.delivery_tag)
            assert returned or last < 2
    assert returned


@pytest.mark.parametrize("durable", [False, True])
def test_a_full_queue_rejects_exactly_what_does_not_fit(channel: Channel, name: str, durable: bool) -> None:
    channel.declare(name, durable=durable, x_max_length=3, x_overflow="reject-publish")
    channel.confirm()
    for number in range(1, 7):
        channel.publish(name, b"%d" % number, delivery_mode=2)
    assert channel.settled(6) == [True, True, True, False, False, False]
    assert channel.get(name, no_ack=True) is not None
    channel.publish(name, b"7", delivery_mode=2)
    channel.publish(name, b"8", delivery_mode=2)
    assert channel.next_method(Basic.Ack).delivery_tag == 7
    assert channel.next_method(Basic.Nack).delivery_tag == 8
    assert channel.drain(name) == [b"2", b"3", b"7"]
    channel.delete(name)


def test_confirms_of_alternating_outcomes_keep_their_order(channel: Channel, name: str) -> None:
    """Persistent, transient and rejected messages in turn: each gets its own confirm."""
    full = channel.declare(exclusive=True, x_max_length=0, x_overflow="reject-publish")
    memory = channel.declare(exclusive=True)
    disk = channel.declare(name, durable=True)
    channel.confirm()
    plan = [memory, full, disk, full, full, disk, memory, disk, disk, full, memory, memory, full] * 20
    for queue in plan:
        channel.publish(queue, b"x", delivery_mode=2)
    assert channel.settled(len(plan)) == [queue != full for queue in plan]
    channel.delete(name)


def test_a_fan_out_is_confirmed_once(channel: Channel, name: str) -> None:
    channel.declare_exchange(name)
    full = channel.declare(exclusive=True, x_max_length=1, x_overflow="reject-publish")
    durable = channel.declare(name, durable=True)
    memory = channel.declare(exclusive=True)
    for queue in (full, durable, memory):
        channel.bind(queue, name)
    channel.confirm()
    for body in (b"one", b"two"):
        channel.publish("", body, exchange=name, delivery_mode=2)
    assert channel.settled(2) == [True, False]
    # The others keep what one has refused.
    assert channel.drain(full) == [b"one"]
    assert channel.drain(durable) == [b"one", b"two"]
    assert channel.drain(memory) == [b"one", b"two"]
    channel.delete(name)
    channel.delete_exchange(name)


def test_each_channel_has_its_own_sequence_numbers(connect: Connect) -> None:
    connection = connect()
    channels = [connection.channel() for _ in range(3)]
    queue = channels[0].declare(exclusive=True)
    for channel in channels:
        channel.confirm()
    for _ in range(50):
        for channel in channels:
            channel.publish(queue, b"x")
    for channel in channels:
        assert channel.settled(50) == [True] * 50


def test_no_confirm_follows_channel_close(connect: Connect, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    queue = channel.declare(name, durable=True)
    channel.confirm()
    data = b"".join(channel.encoded(queue, b"x", delivery_mode=2) for _ in range(20))
    close = struct.pack(">BHIHHHBHHB", 1, channel.number, 11, 20, 40, 200, 0, 0, 0, 0xCE)
    connection.raw.send_bytes(data + close)
    channel.next_method(ChannelClass.CloseOk)
    channel.events.clear()
    del connection.channels[channel.number]
    again = connection.channel()
    assert again.number == channel.number
    again.confirm()
    again.publish(queue, b"y", delivery_mode=2)
    assert again.next_method(Basic.Ack).delivery_tag == 1
    assert again.ready(queue) == 21
    assert not again.events
    again.delete(queue)


def test_no_confirm_follows_a_channel_error(connect: Connect, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    queue = channel.declare(name, durable=True)
    channel.confirm()
    good = b"".join(channel.encoded(queue, b"x", delivery_mode=2) for _ in range(20))
    connection.raw.send_bytes(good + channel.encoded("", b"", "no-such-exchange") + good)
    error = channel.closed()
    assert (error.code, error.method) == (404, (60, 40))
    channel.events.clear()
    other = connection.channel()
    holds(other, queue, 20)
    assert not channel.events
    other.delete(queue)


class SlowFiles(OsFiles):
    """File system whose syncs can be held."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold all syncs while the block lasts."""
        self.go_on.clear()
        try:
            yield
        finally:
            self.go_on.set()

    def sync(self, handle: int) -> None:
        self.go_on.wait()
        super().sync(handle)


@pytest.fixture
def files() -> SlowFiles:
    return SlowFiles()


def test_confirms_of_persistent_messages_wait_for_the_disk_and_of_transient_ones_do_not(
    tmp_path: Path, files: SlowFiles
) -> None:
    with InProcessBroker(tmp_path / "data", files=files) as broker, Connection(broker.url) as connection:
        disk, memory = connection.channel(), connection.channel()
        durable = disk.declare("durable", durable=True)
        for channel in (disk, memory):
            channel.confirm()
        with files.held():
            disk.publish(durable, b"persistent", delivery_mode=2)
            memory.publish(durable, b"transient")
            assert memory.settled(1) == [True]
            assert disk.ready(durable) == 2
            assert not disk.events
            # What needs no disk waits behind what does: confirms come in order.
            disk.publish(durable, b"transient")
            disk.publish("nowhere", b"returned at once", mandatory=True)
            assert isinstance(disk.next(), Message)
            assert not disk.events
            # A consumer need not wait: it may even acknowledge before the disk has it.
            got = memory.get(durable)
            assert got is not None
            assert got.body == b"persistent"
            memory.ack(got.tag)
            assert memory.ready(durable) == 2
        assert disk.settled(3) == [True] * 3


def test_a_stop_waits_for_the_confirms(tmp_path: Path, files: SlowFiles) -> None:
    with InProcessBroker(tmp_path / "data", files=files) as broker:
        connection = Connection(broker.url)
        channel = connection.channel()
        channel.declare("durable", durable=True)
        channel.confirm()
        with files.held():
            channel.publish("durable", b"x", delivery_mode=2)
            assert channel.ready("durable") == 1
            stopping = threading.Thread(target=broker.stop)
            stopping.start()
        assert channel.settled(1) == [True]
        error = channel.closed()
        assert (error.code, error.text) == (
            320,
            "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'",
        )
        connection.abort()
        stopping.join()
