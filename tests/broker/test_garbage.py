"""Whatever a client sends, the broker answers or drops it: no internal error, no standstill, nobody else is hurt."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator

import pytest
from pamqp import base, commands

from tests.support.broker import BrokerProcess
from tests.support.frames import frame as raw_frame
from tests.support.link import GREETING
from tests.support.peer import Peer, content, encoded, made

ROUNDS = 120
PROPERTIES = commands.Basic.Properties(
    content_type="text/plain",
    headers={"n": 1, "list": [1, "two", {"three": None}], "CC": ["other"]},
    delivery_mode=2,
    priority=3,
    reply_to="replies",
    expiration="60000",
    message_id="m1",
    user_id="guest",
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that may be ill-treated; in the end it must not have been surprised."""
    with BrokerProcess(tmp_path_factory.mktemp("garbage")) as broker:
        yield broker
        assert broker.child is not None
        assert broker.child.running
        assert broker.stop() == 0


@pytest.fixture
def bystander(target: BrokerProcess) -> Iterator[Peer]:
    """Another client of that broker, which notices nothing."""
    with Peer(target.url) as peer:
        peer.connect().open().declare("bystander", exclusive=True)
        yield peer
        assert unharmed(peer)
        assert target.child is not None
        assert "internal_error" not in target.child.errors, target.child.errors[-3000:]
        assert "Traceback" not in target.child.errors, target.child.errors[-3000:]


def unharmed(peer: Peer) -> bool:
    """The bystander's queue takes and gives."""
    peer.publish("", "bystander", b"x")
    return peer.purge("bystander") == 1


def conversation() -> list[bytes]:
    """Frames of a client that does a bit of everything, each of them valid."""
    publish = encoded(made(commands.Basic.Publish, exchange="x", routing_key="a.b", mandatory=True))
    arguments = {"x-max-length": 5, "x-message-ttl": 60000, "x-dead-letter-exchange": "amq.fanout"}
    methods: list[base.Frame] = [
        made(commands.Exchange.Declare, exchange="x", exchange_type="topic", auto_delete=True),
        made(commands.Queue.Declare, queue="", exclusive=True, arguments=arguments),
        made(commands.Queue.Bind, exchange="x", routing_key="a.#", arguments={"k": True}),
        made(commands.Exchange.Bind, destination="x", source="amq.topic", routing_key="#"),
        made(commands.Confirm.Select),
        made(commands.Basic.Qos, prefetch_count=2),
        made(commands.Basic.Consume, consumer_tag="c"),
        made(commands.Basic.Ack, delivery_tag=1),
        made(commands.Basic.Get),
        made(commands.Basic.Nack, delivery_tag=2, multiple=False, requeue=True),
        made(commands.Basic.Recover, requeue=True),
        made(commands.Basic.Cancel, consumer_tag="c"),
        made(commands.Queue.Unbind, exchange="x", routing_key="a.#", arguments={"k": True}),
        made(commands.Queue.Purge),
        made(commands.Queue.Delete, if_unused=True),
        made(commands.Exchange.Delete, exchange="x"),
    ]
    said = [encoded(method) for method in methods]
    body = content(b"hello", PROPERTIES)
    head = 8 + struct.unpack_from(">I", body, 3)[0]
    for place in (9, 7, 7, 5):
        said[place:place] = [publish, body[:head], body[head:]]
    return said


def resized(frame: bytes, payload: bytes) -> bytes:
    return frame[:3] + struct.pack(">I", len(payload)) + payload + b"\xce"


def mutated(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    """The same conversation with a few faults, each of which leaves whole frames."""
    frames = list(frames)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(frames))
        frame = frames[at]
        payload = bytearray(frame[7:-1])
        match chance.randrange(9):
            case 0 | 1 | 2 if payload:
                payload[chance.randrange(len(payload))] = chance.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
                )
                frames[at] = resized(frame, bytes(payload))
            case 3:
                frames[at] = resized(frame, bytes(payload[: chance.randrange(len(payload) + 1)]))
            case 4:
                frames[at] = resized(frame, bytes(payload) + chance.randbytes(chance.randrange(9)))
            case 5:
                del frames[at]
            case 6:
                frames.insert(chance.randrange(len(frames) + 1), frame)
            case 7:
                frames[at] = frame[:1] + struct.pack(">H", chance.choice((0, 1, 2, 65535))) + frame[3:]
            case 8:
                frames[at] = bytes([chance.choice((1, 2, 3, 4, 8))]) + frame[1:]
    return frames


def ends(peer: Peer) -> None:
    """Read until connection.close, connection.close-ok, or the end of the stream."""
    try:
        while True:
            kind, _, size = struct.unpack(">BHI", peer.read_bytes(7))
            payload = peer.read_bytes(size + 1)
            if kind == 1 and payload[:4] in (struct.pack(">HH", 10, 50), struct.pack(">HH", 10, 51)):
                return
    except ConnectionError:
        return


def test_the_conversation_itself_is_sound(target: BrokerProcess, bystander: Peer) -> None:
    with Peer(target.url) as peer:
        peer.connect().open()
        peer.send_bytes(b"".join(conversation()) + encoded(commands.Connection.Close(200, "", 0, 0), 0))
        found: list[object] = []
        while not found or not isinstance(found[-1], commands.Connection.CloseOk):
            found.append(peer.read()[1])
        for kind in (commands.Basic.Deliver, commands.Basic.Ack, commands.Queue.DeleteOk):
            assert any(isinstance(frame, kind) for frame in found)
        assert not any(isinstance(frame, commands.Channel.Close) for frame in found), found


@pytest.mark.parametrize("seed", range(4))
def test_faulty_frames(target: BrokerProcess, bystander: Peer, seed: int) -> None:
    chance = random.Random(seed)
    said = conversation()
    close = encoded(commands.Connection.Close(200, "", 0, 0), 0)
    for _ in range(ROUNDS):
        with Peer(target.url) as peer:
            peer.connect().open()
            data = b"".join(mutated(chance, said)) + close
            # In one piece, or in two.
            cut = chance.choice((0, chance.randrange(len(data))))
            with contextlib.suppress(OSError):
                peer.send_bytes(data[:cut])
                peer.send_bytes(data[cut:])
            ends(peer)
    assert unharmed(bystander)


def test_cut_and_broken_streams(target: BrokerProcess, bystander: Peer) -> None:
    """Lengths and ends that are wrong: the stream has no meaning any more, and the client is gone the next moment."""
    chance = random.Random(7)
    said = b"".join(conversation())
    for _ in range(ROUNDS):
        with Peer(target.url) as peer:
            peer.connect().open()
            data = bytearray(said[: chance.randrange(len(said))])
            for _ in range(chance.randrange(3)):
                if data:
                    data[chance.randrange(len(data))] = chance.randrange(256)
            peer.send_bytes(bytes(data))
    assert unharmed(bystander)


def test_noise(target: BrokerProcess, bystander: Peer) -> None:
    chance = random.Random(11)
    for _ in range(ROUNDS):
        noise = chance.randbytes(chance.choice((1, 7, 8, 9, 100, 5000)))
        framed = raw_frame(chance.choice((1, 2, 3, 8)), chance.randrange(3), noise)
        for prefix in (b"", GREETING):
            with Peer(target.url) as peer:
                peer.send_bytes(prefix + chance.choice((noise, framed)))
        with Peer(target.url) as peer:
            peer.connect().open()
            peer.send_bytes(chance.choice((noise, framed)))
    assert unharmed(bystander)
