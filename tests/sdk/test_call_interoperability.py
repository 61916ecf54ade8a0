"""RPC interoperability: pika clients and servers, and other clients that follow RabbitMQ's tutorials."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import pika
import pytest
from pydantic import BaseModel

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.pika_connection import pika_connection
from warren.sdk import RemoteError, ReplyMode, Request


class Quote(BaseModel):
    sku: str
    cents: int


@pytest.mark.parametrize("direct", [False, True])
async def test_a_pika_client_is_answered(make_app: MakeApp, amqp_url: str, name: str, direct: bool) -> None:
    class GetQuote(Request[Quote], queue=name):
        sku: str

    app = make_app()

    @app.handle(GetQuote)
    async def quote(request: GetQuote) -> Quote:
        return Quote(sku=request.sku, cents=5)

    def ask() -> tuple[str | None, bytes]:
        """Call with pika as RabbitMQ's tutorial 6 does, or with direct reply-to."""
        with pika_connection(amqp_url) as connection:
            channel = connection.channel()
            replies = "amq.rabbitmq.reply-to"
            if not direct:
                replies = channel.queue_declare("", exclusive=True).method.queue
            answers: list[tuple[str | None, bytes]] = []
            channel.basic_consume(
                replies,
                lambda _, __, properties, body: answers.append((properties.correlation_id, body)),
                auto_ack=True,
            )
            properties = pika.BasicProperties(reply_to=replies, correlation_id="c1")
            channel.basic_publish("", name, b'{"sku":"lamp"}', properties)
            for _ in range(600):
                connection.process_data_events(time_limit=0.1)
                if answers:
                    break
            return answers[0]

    async with app:
        assert await asyncio.to_thread(ask) == ("c1", b'{"sku":"lamp","cents":5}')


@pytest.mark.parametrize("replies", get_args(ReplyMode))
async def test_a_pika_server_is_called(
    make_app: MakeApp, amqp_url: str, name: str, replies: ReplyMode
) -> None:
    class Fibonacci(Request[int], queue=name):
        n: int

    app = make_app(replies=replies)
    app.declare(*Fibonacci.required_topology())
    async with app:
        with pika_server(amqp_url, name):
            assert await asyncio.gather(*(app.call(Fibonacci(n=n)) for n in range(8))) == [
                0,
                1,
                1,
                2,
                3,
                5,
                8,
                13,
            ]


@contextmanager
def pika_server(url: str, queue: str) -> Iterator[None]:
    """Answers `{"n": ...}` with a Fibonacci number, as RabbitMQ's tutorial 6 does."""
    connection = pika_connection(url)
    channel = connection.channel()

    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def answer(_: Any, method: Any, properties: Any, body: bytes) -> None:
        channel.basic_publish(
            "", properties.reply_to, str(fibonacci(json.loads(body)["n"])).encode(),
            pika.BasicProperties(correlation_id=properties.correlation_id),
        )  # fmt: skip
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(queue, answer)
    thread = threading.Thread(target=channel.start_consuming)
    thread.start()
    try:
        yield
    finally:
        connection.add_callback_threadsafe(channel.stop_consuming)
        thread.join()
        connection.close()


async def test_a_client_of_another_kind_is_answered(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    """The wire format of requests and replies is frozen."""

    class GetQuote(Request[Quote], queue=name):
        sku: str

    app = make_app()

    @app.handle(GetQuote)
    async def quote(request: GetQuote) -> Quote:
        if request.sku == "bad":
            raise RemoteError("sold_out", "none left")
        return Quote(sku=request.sku, cents=5)

    async with app:
        replies = await amqp_client.channel.declare_queue(exclusive=True)
        await amqp_client.put(name, b'{"sku":"x"}', reply_to=replies.name, correlation_id="c1")
        good = await amqp_client.take(replies.name)
        await amqp_client.put(name, b'{"sku":"bad"}', reply_to=replies.name, correlation_id="c2")
        bad = await amqp_client.take(replies.name)
        await amqp_client.put(name, b'{"sku":', reply_to=replies.name, correlation_id="c3")
        unread = await amqp_client.take(replies.name)
    assert (good.body, good.correlation_id, good.type) == (b'{"sku":"x","cents":5}', "c1", None)
    assert (good.content_type, good.delivery_mode) == ("application/json", 1)
    assert (bad.correlation_id, bad.type) == ("c2", "warren.error")
    assert json.loads(bad.body) == {
        "code": "sold_out",
        "message": "none left",
        "details": None,
        "retryable": False,
    }
    assert json.loads(unread.body)["code"] == "undecodable"
