"""Settings that change publishing: `immediate` honoured, and timestamps added."""

from __future__ import annotations

import pytest
from pamqp import commands, frame

from tests.support.blocking_client import Channel, Connection, Message
from tests.support.frames import body_frames
from tests.support.in_process_broker import InProcessBroker
from tests.support.raw_client import content, encoded, made
from warren.broker import BrokerConfig


def immediate(
    channel: Channel, key: str, body: bytes, *, exchange: str = "", mandatory: bool = False
) -> None:
    method = made(
        commands.Basic.Publish, exchange=exchange, routing_key=key, immediate=True, mandatory=mandatory
    )
    channel.connection.raw.send_bytes(encoded(method, channel.number) + content(body, channel=channel.number))


def returned(channel: Channel) -> tuple[int | None, str, bytes]:
    message = channel.next()
    assert isinstance(message, Message)
    assert isinstance(message.carrier, commands.Basic.Return)
    return message.carrier.reply_code, str(message.carrier.reply_text), message.body


def test_an_immediate_message_goes_to_consumers_only() -> None:
    with (
        InProcessBroker(config=BrokerConfig(immediate="honour")) as broker,
        Connection(broker.url) as connection,
    ):
        channel = connection.channel()
        queues = [channel.declare(exclusive=True) for _ in range(2)]
        for queue in queues:
            channel.bind(queue, "amq.fanout")
        channel.confirm()
        # Nobody consumes: it comes back, and is confirmed.
        immediate(channel, queues[0], b"1")
        immediate(channel, "", b"2", exchange="amq.fanout")
        assert channel.settled(2) == [True, True]
        assert returned(channel) == (313, "NO_CONSUMERS", b"1")
        assert returned(channel) == (313, "NO_CONSUMERS", b"2")
        # One of two has a consumer: it alone gets it.
        channel.consume(queues[0], "tag")
        immediate(channel, "", b"3", exchange="amq.fanout")
        assert [message.body for message in channel.deliveries(1)] == [b"3"]
        assert channel.ready(queues[1]) == 0
        # Where no queue matches, `mandatory` decides.
        other = connection.channel()
        immediate(other, "nowhere", b"4")
        immediate(other, "nowhere", b"5", mandatory=True)
        assert returned(other) == (312, "NO_ROUTE", b"5")


@pytest.mark.parametrize(("mode", "kept"), [("missing", True), ("always", False)])
def test_publishes_get_a_timestamp(mode: str, kept: bool) -> None:
    with (
        InProcessBroker(config=BrokerConfig(timestamps=mode)) as broker,
        Connection(broker.url) as connection,
    ):
        channel = connection.channel()
        queue = channel.declare(exclusive=True)
        now = broker.clock.now()
        channel.publish(queue, b"without", message_id="m")
        method = commands.Basic.Publish(exchange="", routing_key=queue)
        header = b"\x00\x3c\x00\x00" + (4).to_bytes(8) + b"\x20\x40" + (0).to_bytes(4) + (1234).to_bytes(8)
        head = b"\x02" + channel.number.to_bytes(2) + len(header).to_bytes(4) + header + b"\xce"
        channel.connection.raw.send_bytes(
            frame.marshal(method, channel.number) + head + body_frames(channel.number, b"with", 1000)
        )
        first, second = channel.get(queue), channel.get(queue)
        assert first is not None
        assert second is not None
        stamp = first.properties.timestamp
        assert stamp is not None
        assert (stamp.timestamp(), first.headers) == (now, {"timestamp_in_ms": int(now * 1000)})
        assert first.properties.message_id == "m"
        stamp = second.properties.timestamp
        assert stamp is not None
        assert stamp.timestamp() == (1234 if kept else now)
        assert second.body == b"with"


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("immediate", "maybe", "immediate is 'maybe'; it must be one of refuse, honour"),
        ("timestamps", "never", "timestamps is 'never'; it must be one of off, missing, always"),
    ],
)
def test_invalid_settings_are_refused(option: str, value: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        BrokerConfig(**{option: value})  # type: ignore[arg-type]
