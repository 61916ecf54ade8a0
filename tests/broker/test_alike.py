"""Publishes that are alike, and those that are only nearly so: each arrives as it was sent, wherever the bytes are cut."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Sequence

from pamqp import commands

from tests.support.broker_process import BrokerProcess
from tests.support.frames import BASIC_PUBLISH, HEADER, body_frames, frame, method, short
from tests.support.raw_client import RawClient, Refusal, raw_connection

Content = tuple[bytes, bytes]
"""Header and body."""
DELIVER = (60, 60)
MODE, PRIORITY, MESSAGE_ID, EXPIRATION = 0x1000, 0x0800, 0x0080, 0x0100


def publish(queue: str, body: bytes, flags: int, properties: bytes, channel: int = 1) -> bytes:
    head = struct.pack(">HHQH", 60, 0, len(body), flags) + properties
    opening = method(channel, BASIC_PUBLISH, b"\0\0" + short("") + short(queue) + b"\0")
    return opening + frame(HEADER, channel, head) + body_frames(channel, body, 131072)


def test_what_is_alike_and_what_is_not(amqp_url: str) -> None:
    kinds = [
        (0, b""),
        (0, b""),
        (MODE, b"\x02"),
        (MODE, b"\x02"),
        (MODE, b"\x01"),
        (MODE | PRIORITY, b"\x02\x03"),
        (MODE | PRIORITY, b"\x02\x03"),
        (MESSAGE_ID, b"\x02m1"),
        (MESSAGE_ID, b"\x02m2"),
        (0, b""),
        (EXPIRATION, b"\x0560000"),
        (0, b""),
    ]
    bodies = [b"", b"a", b"b", b"cc"]
    sent = [(flags, props, body) for flags, props in kinds for body in bodies]
    with raw_connection(amqp_url) as client:
        client.open(1)
        client.open(2)
        queue = f"alike-{uuid.uuid4().hex}"
        client.declare_queue(queue, exclusive=True)
        client.consume(queue, no_ack=True)
        channels = [1 + (number % 5 == 4) for number in range(len(sent))]
        stream = b"".join(
            publish(queue, body, flags, props, channel)
            for (flags, props, body), channel in zip(sent, channels, strict=True)
        )
        expected: dict[int, list[Content]] = {1: [], 2: []}
        for (flags, props, body), channel in zip(sent, channels, strict=True):
            expected[channel].append((struct.pack(">HHQH", 60, 0, len(body), flags) + props, body))
        for size in (1, 13, 64, len(stream)):
            for at in range(0, len(stream), size):
                client.send_bytes(stream[at : at + size])
            found = [(each.header, each.body) for each in (client.expect_content(DELIVER) for _ in sent)]
            assert interleaved(found, expected[1], expected[2])


def interleaved(found: Sequence[Content], one: Sequence[Content], other: Sequence[Content]) -> bool:
    """Return whether `found` merges `one` and `other`, each in its order: two channels have no order between them."""
    taken = {0}
    """Possible numbers of contents of `one` found so far."""
    for place, content in enumerate(found):
        taken = {n + 1 for n in taken if one[n : n + 1] == [content]} | {
            n for n in taken if other[place - n : place - n + 1] == [content]
        }
    return len(one) in taken and len(found) == len(one) + len(other)


def test_each_of_many_routing_keys_arrives_as_it_was_sent(broker: BrokerProcess, name: str) -> None:
    """Send more keys than a connection, a consumer and a queue keep, each several times and in any order."""
    order = random.Random(7)
    sent = [
        (order.choice((f"{name}-a", f"{name}-b")), f"key-{order.randrange(150)}", b"%d" % number)
        for number in range(600)
    ]
    with raw_connection(broker.url) as client:
        client.open()
        client.declare(name, durable=True)
        for exchange in (f"{name}-a", f"{name}-b"):
            client.declare_exchange(exchange, "topic", durable=True)
            client.bind(name, exchange, "#")
        client.select_confirms()
        for exchange, key, body in sent:
            client.publish(exchange, key, body, commands.Basic.Properties(delivery_mode=2))
        while client.expect(commands.Basic.Ack).delivery_tag != len(sent):
            pass
        client.consume(name)
        assert [arrived(client) for _ in sent] == sent
    broker.kill()
    broker.start()
    with raw_connection(broker.url) as client:
        client.open()
        client.consume(name, no_ack=True)
        assert [arrived(client) for _ in sent] == sent


def arrived(client: RawClient) -> tuple[str, str, bytes]:
    """Return exchange, routing key and body of the next delivery."""
    message = client.receive_message(commands.Basic.Deliver)
    assert isinstance(message.carrier, commands.Basic.Deliver)
    return message.carrier.exchange or "", message.carrier.routing_key or "", message.body


def test_keys_that_were_used_before_take_new_routes(peer: RawClient, name: str) -> None:
    first, second = f"{name}-1", f"{name}-2"
    peer.declare_exchange(name, auto_delete=True)
    for queue in (first, second):
        peer.declare(queue, exclusive=True)
        peer.bind(queue, name, "a")
        peer.bind(queue, name, "b")
    for key in ("a", "b", "a", "b"):
        peer.publish(name, key)
    assert (peer.purge(first), peer.purge(second)) == (4, 4)
    unbind = commands.Queue.Unbind(queue=first, exchange=name, routing_key="a")
    peer.call(unbind, 1, commands.Queue.UnbindOk)
    for key in ("a", "b", "a", "b"):
        peer.publish(name, key)
    assert (peer.purge(first), peer.purge(second)) == (2, 4)
    peer.delete_queue(second)
    peer.publish(name, "b")
    peer.publish(name, "a", b"nowhere", mandatory=True)
    assert peer.receive_message(commands.Basic.Return).body == b"nowhere"
    assert peer.purge(first) == 1


def test_a_key_that_was_used_before_finds_its_exchange_deleted(peer: RawClient, name: str) -> None:
    peer.declare_exchange(name)
    for key in ("a", "b", "a", "b"):
        peer.publish(name, key)
    peer.call(commands.Exchange.Delete(exchange=name), 1, commands.Exchange.DeleteOk)
    peer.publish(name, "a")
    assert peer.refusal().code == 404


def test_keys_count_for_the_channel_that_publishes_them(peer: RawClient, name: str) -> None:
    """Open a channel again under the same number: it gets its own publishes, with confirms."""
    peer.declare(name, exclusive=True)
    for key in (name, "nowhere", name, "nowhere"):
        peer.publish("", key)
    peer.call(commands.Channel.Close(200, "", 0, 0), 1, commands.Channel.CloseOk)
    peer.open()
    peer.select_confirms()
    for number, key in enumerate((name, "nowhere", name), start=1):
        peer.publish("", key)
        assert peer.expect(commands.Basic.Ack).delivery_tag == number
    assert peer.purge(name) == 4


def test_what_is_alike_but_for_its_end_is_refused(peer: RawClient, name: str) -> None:
    peer.declare(name, exclusive=True)
    one = publish(name, b"x" * 16, MODE, b"\x02")
    text = 'FRAME_ERROR - type 3, all octets = <<"xxxxxxxxxxxxxxxx">>: {invalid_frame_end_marker,0}'
    assert peer.cut_off(one + one + one[:-1] + b"\0") == Refusal("connection", 501, text, (0, 0))


def test_the_end_of_one_that_is_alike_is_waited_for_and_looked_at(peer: RawClient, name: str) -> None:
    peer.declare(name, exclusive=True)
    peer.call(commands.Confirm.Select(), 1, commands.Confirm.SelectOk)
    one = publish(name, b"x" * 16, MODE, b"\x02")
    for cut in (len(one) - 1, len(one) - 8, len(one) - 20, len(one) - 30, 12):
        # The first one's confirm says that the piece behind it has been read as well.
        peer.send_bytes(one + one[:cut])
        peer.expect(commands.Basic.Ack)
        peer.send_bytes(one[cut:])
        peer.expect(commands.Basic.Ack)
    text = 'FRAME_ERROR - type 3, all octets = <<"xxxxxxxxxxxxxxxx">>: {invalid_frame_end_marker,0}'
    peer.send_bytes(one + one[:-1])
    peer.expect(commands.Basic.Ack)
    assert peer.cut_off(b"\0") == Refusal("connection", 501, text, (0, 0))
