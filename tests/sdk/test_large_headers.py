"""Headers that grow past a frame: brokers and the SDK add to those of a message that fails."""

from __future__ import annotations

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import Command, Queue, Request, Retry

LARGEST = 131_072
"""Bytes of a frame on Warren's broker and on RabbitMQ, by default."""


@pytest.mark.parametrize("room", [500, 800, 2_500])
async def test_a_message_whose_headers_outgrow_a_frame_is_dead_lettered_and_holds_up_no_other(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, room: int
) -> None:
    """Depending on the room, the delayed copy is too large when it is published, or when the broker delivers it with
    x-death, or the dead letter with its error is.
    """

    class Job(Command, queue=name):
        n: int

    app = make_app()
    handled: list[int] = []

    @app.handle(Job, retry=Retry(1).then("50ms"))
    async def job(message: Job) -> None:
        handled.append(message.n)
        if message.n == 1:
            raise ValueError("not today " * 200)

    async with app:
        await app.publish(Job(n=1), headers={"large": "x" * (LARGEST - room)})
        for n in (2, 3, 4):
            await app.publish(Job(n=n))
        await eventually(lambda: set(handled) == {1, 2, 3, 4}, "all are handled")
        await amqp_client.holds(f"{name}.dead", 1)
        letter = await amqp_client.take(f"{name}.dead")
        assert app.statistics().reconnects == 0
    assert letter.body == b'{"n":1}'
    assert letter.headers["large"] == "x" * (LARGEST - room)
    if room > 500:
        assert str(letter.headers["warren-dead-error"]).startswith("ValueError: not today ")
        assert letter.headers["warren-dead-reason"] == "failed"


async def test_a_request_whose_copy_fits_no_frame_is_answered_with_its_error(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ask(Request[int], queue=name):
        pass

    app = make_app()

    @app.handle(Ask, retry=Retry(1).then("50ms"))
    async def answer(request: Ask) -> int:
        raise ValueError("not today")

    async with app:
        replies = await amqp_client.channel.declare_queue(exclusive=True)
        large = {"large": "x" * (LARGEST - 130)}
        await amqp_client.put(name, b"{}", headers=large, reply_to=replies.name, correlation_id="1")
        reply = await amqp_client.take(replies.name)
    assert (reply.type, reply.correlation_id) == ("warren.error", "1")
    assert b"not today" in reply.body


async def test_a_message_of_a_stream_that_fits_no_dead_letter_has_one_without_its_headers(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    """The stream keeps the message, and its reader goes on."""
    app = make_app()
    app.declare(Queue(name, type="stream"))
    handled: list[bytes] = []

    @app.handle(bytes, stream=name, reader="r", offset="first", retry=Retry(1))
    async def read(body: bytes) -> None:
        handled.append(body)
        if body == b"1":
            raise ValueError("not today")

    async with app:
        large = {"large": "x" * (LARGEST - 150)}
        await amqp_client.put(name, b"1", headers=large)
        await amqp_client.put(name, b"2")
        await eventually(lambda: handled == [b"1", b"2"], "both are handled")
        letter = await amqp_client.take(f"{name}.r.dead")
    assert letter.body == b"1"
    assert letter.headers["warren-dead-error"] == "ValueError: not today"
    assert "large" not in letter.headers
