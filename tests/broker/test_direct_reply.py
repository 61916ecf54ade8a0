"""Direct reply-to: replies without a reply queue, at most once, and RabbitMQ's refusals around it."""

from __future__ import annotations

import asyncio
import base64
import itertools
import uuid
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from pamqp import commands

from tests.broker.conftest import Connect, RawConnect
from tests.support.blocking_client import Channel, Message
from tests.support.broker_behaviour import Behaviour
from tests.support.raw_client import RawClient, Refusal, made

REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture
def server_channel(connect: Connect) -> Channel:
    """Channel of the server that replies."""
    return connect().channel()


def asked(channel: Channel, server: Channel, body: bytes = b"question", **properties: Any) -> Message:
    """Publish a request, and return it as the server gets it."""
    queue = server.declare(auto_delete=True)
    channel.publish(queue, body, reply_to=REPLY_TO, **properties)
    server.consume(queue, "server", no_ack=True)
    (message,) = server.deliveries(1)
    server.cancel("server")
    return message


def reply_to(message: Message) -> str:
    return str(message.properties.reply_to)


def refused(code: int, text: str, method: tuple[int, int]) -> Refusal:
    return Refusal("channel", code, text, method)


def test_a_reply_reaches_the_requester(channel: Channel, server_channel: Channel) -> None:
    channel.consume(REPLY_TO, "answers", no_ack=True)
    question = asked(channel, server_channel, correlation_id="7", headers={"a": 1}, message_id="m")
    name = reply_to(question)
    assert name.startswith(REPLY_TO + ".")
    assert (question.body, question.headers) == (b"question", {"a": 1})
    assert (question.properties.correlation_id, question.properties.message_id) == ("7", "m")
    server_channel.publish(name, b"answer", correlation_id="7")
    server_channel.publish(name, b"another", correlation_id="7")
    answers = channel.deliveries(2)
    assert [answer.body for answer in answers] == [b"answer", b"another"]
    assert answers[0].consumer == "answers"
    assert (answers[0].carrier.exchange, answers[0].carrier.routing_key) == ("", name)
    assert answers[0].properties.correlation_id == "7"


def test_each_channel_has_its_own_reply_address(connect: Connect, server_channel: Channel) -> None:
    connection = connect()
    channels = [connection.channel() for _ in range(3)]
    names = []
    for channel in channels:
        channel.consume(REPLY_TO, "answers", no_ack=True)
        names.append(reply_to(asked(channel, server_channel)))
    assert len(set(names)) == 3
    for number, name in enumerate(names):
        server_channel.publish(name, b"%d" % number)
    assert [channel.deliveries(1)[0].body for channel in channels] == [b"0", b"1", b"2"]


def test_a_reply_of_several_frames(channel: Channel, server_channel: Channel) -> None:
    channel.consume(REPLY_TO, "answers", no_ack=True)
    body = bytes(300_000)
    question = asked(channel, server_channel, body)
    assert question.body == body
    server_channel.publish(reply_to(question), body)
    assert channel.deliveries(1)[0].body == body


def test_other_reply_addresses_are_kept(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.publish(queue, b"x", reply_to="elsewhere")
    message = channel.get(queue)
    assert message is not None
    assert reply_to(message) == "elsewhere"


def test_a_reply_to_a_closed_channel_is_unroutable(
    connect: Connect, server_channel: Channel, server: Behaviour
) -> None:
    channel = connect().channel()
    channel.consume(REPLY_TO, "answers", no_ack=True)
    name = reply_to(asked(channel, server_channel))
    server_channel.confirm()
    server_channel.publish(name, b"in time", mandatory=server.is_warren)
    assert channel.deliveries(1)[0].body == b"in time"
    channel.close()
    server_channel.publish(name, b"too late", mandatory=True)
    assert server_channel.settled(2) == [True, True]
    returned = [event for event in server_channel.events if isinstance(event, Message)]
    assert [message.body for message in returned] == [b"too late"] * server.returns_late_replies


def test_a_reply_address_cannot_be_guessed_from_another(
    connect: Connect, server_channel: Channel, server: Behaviour
) -> None:
    if not server.is_warren:
        pytest.skip("RabbitMQ's names hold a process id and a random key, in a form of its own")
    waiting = connect()
    channels = [waiting.channel() for _ in range(8)]
    for channel in channels:
        channel.consume(REPLY_TO, "answers", no_ack=True)
    names = [reply_to(asked(channel, server_channel)) for channel in channels]
    # 128 random bits each: successive channels of one connection share no more than chance gives them.
    keys = [base64.urlsafe_b64decode(name.removeprefix(REPLY_TO + ".") + "==") for name in names]
    assert {len(key) for key in keys} == {16}
    assert all(a[:8] != b[:8] and a[8:] != b[8:] for a, b in itertools.combinations(keys, 2))
    stranger = connect().channel()
    stranger.confirm()
    own = REPLY_TO + "."
    guesses = [
        own,
        REPLY_TO,
        f"{own}1",
        own + "A" * 22,
        *(name[:-1] for name in names),
        *(f"{name}A" for name in names),
    ]
    guesses += [names[0][:-1] + last for last in "AQgw" if names[0][-1] != last]
    for guess in guesses:
        stranger.publish(guess, b"forged", mandatory=True)
    assert stranger.settled(len(guesses)) == [True] * len(guesses)
    returned = [event for event in stranger.events if isinstance(event, Message)]
    assert [message.carrier.routing_key for message in returned] == guesses
    # Nobody got any of them.
    for channel, name in zip(channels, names, strict=True):
        server_channel.publish(name, b"answer")
        assert channel.deliveries(1)[0].body == b"answer"


def test_a_cancelled_reply_consumer_gets_no_more_replies(
    channel: Channel, server_channel: Channel, server: Behaviour
) -> None:
    if not server.is_warren:
        pytest.skip("RabbitMQ goes on delivering")
    channel.consume(REPLY_TO, "answers", no_ack=True)
    name = reply_to(asked(channel, server_channel))
    channel.cancel("answers")
    server_channel.publish(name, b"x", mandatory=True)
    assert isinstance(server_channel.next(), Message)
    # Its consumer may come again, under another name.
    channel.consume(REPLY_TO, "answers", no_ack=True)
    assert reply_to(asked(channel, server_channel)) != name


def consume(tag: str, *, no_ack: bool = True) -> commands.Basic.Consume:
    return made(commands.Basic.Consume, queue=REPLY_TO, consumer_tag=tag, no_ack=no_ack)


def test_invalid_reply_consumers_are_refused(peer: RawClient) -> None:
    failed = "PRECONDITION_FAILED - reply consumer"
    assert peer.refused(consume("a", no_ack=False)) == refused(406, f"{failed} cannot acknowledge", (60, 20))
    peer.open()
    peer.call(consume("a"), 1, commands.Basic.ConsumeOk)
    assert peer.refused(consume("b")) == refused(406, f"{failed} already set", (60, 20))


def test_a_request_without_a_reply_consumer_is_refused(peer: RawClient) -> None:
    peer.publish("", "anywhere", b"x", commands.Basic.Properties(reply_to=REPLY_TO))
    text = "PRECONDITION_FAILED - fast reply consumer does not exist"
    assert peer.refusal() == refused(406, text, (60, 40))


def test_declaring_the_pseudo_queue_checks_for_existence(
    raw_connect: RawConnect, peer: RawClient, channel: Channel, server_channel: Channel, server: Behaviour
) -> None:
    channel.consume(REPLY_TO, "answers", no_ack=True)
    name = reply_to(asked(channel, server_channel))
    for queue in (REPLY_TO, name):
        for fields in (
            {},
            {"passive": True},
            {"durable": True, "exclusive": True, "arguments": {"x-foo": 1}},
        ):
            command = made(commands.Queue.Declare, queue=queue, **fields)
            answer = peer.call(command, 1, commands.Queue.DeclareOk)
            assert (answer.queue, answer.message_count, answer.consumer_count) == (queue, 0, 1)
    for missing in (f"{REPLY_TO}.nobody", f"{REPLY_TO}x"):
        found = raw_connect().connect().open().refused(made(commands.Queue.Declare, queue=missing))
        if server.has_reply_queues and not server.explains_crashes:
            assert found == Refusal("connection", 541, "INTERNAL_ERROR", (0, 0))
        else:
            assert found == refused(404, f"NOT_FOUND - no queue '{missing}' in vhost '/'", (50, 10))
    channel.close()
    channel.connection.channel().close()
    assert peer.refused(made(commands.Queue.Declare, queue=name)).code == 404


def test_the_pseudo_queue_cannot_be_used_as_a_queue(
    raw_connect: RawConnect, channel: Channel, server_channel: Channel, server: Behaviour
) -> None:
    channel.consume(REPLY_TO, "answers", no_ack=True)
    name = reply_to(asked(channel, server_channel))
    for command in (
        made(commands.Basic.Get, queue=REPLY_TO),
        made(commands.Queue.Purge, queue=REPLY_TO),
        made(commands.Queue.Bind, queue=REPLY_TO, exchange="amq.direct"),
    ):
        found = raw_connect().connect().open().refused(command)
        assert (found.scope, found.code) == ("channel", 404), command
    described = f"queue '{name}' in vhost '/'"
    for used, scope, code, text in (
        (
            made(commands.Basic.Get, queue=name),
            "connection",
            540,
            f"NOT_IMPLEMENTED - basic.get not supported by volatile {described}",
        ),
        (
            made(commands.Basic.Consume, queue=name, no_ack=True),
            "channel",
            406,
            f"PRECONDITION_FAILED - only creator channel may consume from {described}",
        ),
        (
            made(commands.Queue.Bind, queue=name, exchange="amq.direct"),
            "channel",
            403,
            "ACCESS_REFUSED - cannot bind or unbind to a volatile (direct reply-to) queue",
        ),
    ):
        found = raw_connect().connect().open().refused(used)
        if server.has_reply_queues:
            assert found[:3] == (scope, code, text)
        else:
            assert (found.scope, found.code) == ("channel", 404), used
    if server.has_reply_queues:
        purge = made(commands.Queue.Purge, queue=name)
        assert raw_connect().connect().open().call(purge, 1, commands.Queue.PurgeOk).message_count == 0
    deleted = made(commands.Queue.Delete, queue=REPLY_TO)
    assert raw_connect().connect().open().call(deleted, 1, commands.Queue.DeleteOk).message_count == 0


async def test_requests_with_aio_pika(amqp_url: str) -> None:
    """aio-pika as its users write it, with a hundred requests at a time."""
    connection = await aio_pika.connect(amqp_url)
    async with connection:
        channel, serving = await connection.channel(), await connection.channel()
        questions = await serving.declare_queue(f"questions-{uuid.uuid4().hex}", auto_delete=True)

        async def answer(message: AbstractIncomingMessage) -> None:
            assert message.reply_to is not None
            reply = aio_pika.Message(message.body * 2, correlation_id=message.correlation_id)
            await serving.default_exchange.publish(reply, message.reply_to, mandatory=False)

        await questions.consume(answer, no_ack=True)
        waiting: dict[str, asyncio.Future[bytes]] = {}

        async def take(message: AbstractIncomingMessage) -> None:
            waiting[str(message.correlation_id)].set_result(message.body)

        replies = await channel.get_queue(REPLY_TO, ensure=False)
        await replies.consume(take, no_ack=True)
        for number in range(100):
            waiting[str(number)] = asyncio.get_running_loop().create_future()
            question = aio_pika.Message(b"%d," % number, correlation_id=str(number), reply_to=REPLY_TO)
            await channel.default_exchange.publish(question, questions.name)
        async with asyncio.timeout(60):
            assert await asyncio.gather(*waiting.values()) == [b"%d,%d," % (n, n) for n in range(100)]
