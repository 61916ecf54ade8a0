"""Programs of other tools beside an App on one broker: FastAPI, FastStream and pika. Celery has tests of its own:
tests/patterns/test_celery_programs.py."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pika
from fastapi import FastAPI
from faststream.rabbit import RabbitBroker, RabbitQueue
from pydantic import BaseModel

from tests.sdk.conftest import MakeApp
from tests.support.pika_connection import pika_connection
from warren.sdk import Command, Queue, Request

WAIT = 60.0
"""Seconds that a program waits for another one."""


class Bill(BaseModel):
    order_id: str
    cents: int


async def test_a_fastapi_process_publishes_and_calls(make_app: MakeApp, name: str) -> None:
    class Charge(Command, queue=f"{name}.charges"):
        order_id: str
        cents: int

    class GetBill(Request[Bill], queue=f"{name}.bills"):
        order_id: str

    worker, web = make_app(), make_app(name="web")
    bills: dict[str, Bill] = {}
    billed = asyncio.Event()

    @worker.handle(Charge)
    async def charge(command: Charge) -> None:
        bills[command.order_id] = Bill(order_id=command.order_id, cents=command.cents)
        billed.set()

    @worker.handle(GetBill)
    async def get_bill(request: GetBill) -> Bill:
        return bills[request.order_id]

    api = FastAPI()

    async def post_order(bill: Bill) -> None:
        await web.publish(Charge(order_id=bill.order_id, cents=bill.cents))

    async def read_order(order_id: str) -> Bill:
        return await web.call(GetBill(order_id=order_id), timeout=WAIT)

    api.add_api_route("/orders", post_order, methods=["POST"], status_code=202)
    api.add_api_route("/orders/{order_id}", read_order)
    async with (
        worker,
        web,
        httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://api") as client,
    ):
        bill = {"order_id": "42", "cents": 990}
        assert (await client.post("/orders", json=bill)).status_code == 202
        async with asyncio.timeout(WAIT):
            await billed.wait()
        assert (await client.get("/orders/42")).json() == bill


async def test_a_faststream_program_and_an_app_exchange_messages(
    make_app: MakeApp, amqp_url: str, name: str
) -> None:
    class Charge(Command, queue=Queue(f"{name}.warren", type="classic", dead_letter_exchange=None)):
        order_id: str
        cents: int

    class Double(Request[int], queue=Queue(f"{name}.double", type="classic", dead_letter_exchange=None)):
        number: int

    app, broker = make_app(), RabbitBroker(amqp_url, logger=None)
    for_warren: asyncio.Queue[Charge] = asyncio.Queue()
    for_faststream: asyncio.Queue[Bill] = asyncio.Queue()

    @app.handle(Charge)
    async def charge(command: Charge) -> None:
        await for_warren.put(command)
        await app.publish(Bill(order_id=command.order_id, cents=command.cents), key=f"{name}.faststream")

    @app.handle(Double)
    async def double(request: Double) -> int:
        return 2 * request.number

    async def bill(message: Bill) -> None:
        await for_faststream.put(message)

    subscriber = broker.subscriber(RabbitQueue(f"{name}.faststream", durable=True))
    subscriber(bill)
    async with broker, app:
        await broker.start()
        try:
            await broker.publish(Bill(order_id="42", cents=990), queue=f"{name}.warren")
            async with asyncio.timeout(WAIT):
                assert (await for_warren.get()).cents == 990
                assert await for_faststream.get() == Bill(order_id="42", cents=990)
            answer = await broker.request({"number": 21}, queue=f"{name}.double", timeout=WAIT)
            assert await answer.decode() == 42
        finally:
            await broker.stop()
    await delete_queue(amqp_url, f"{name}.faststream")


async def test_a_pika_program_and_an_app_exchange_messages(
    make_app: MakeApp, amqp_url: str, name: str
) -> None:
    class Charge(Command, queue=f"{name}.warren"):
        order_id: str
        cents: int

    app = make_app()

    @app.handle(Charge)
    async def charge(command: Charge) -> None:
        await app.publish(Bill(order_id=command.order_id, cents=command.cents), key=f"{name}.pika")

    def pika_program() -> tuple[bytes, Any]:
        """Publish with confirms, and consume the answer."""
        with pika_connection(amqp_url) as connection:
            channel = connection.channel()
            channel.queue_declare(f"{name}.pika", durable=True)
            channel.confirm_delivery()
            properties = pika.BasicProperties(content_type="application/json", delivery_mode=2)
            channel.basic_publish(
                "", f"{name}.warren", b'{"order_id":"42","cents":990}', properties, mandatory=True
            )
            for method, received, body in channel.consume(f"{name}.pika", inactivity_timeout=WAIT):
                channel.basic_ack(method.delivery_tag)
                channel.cancel()
                return body, received
        raise AssertionError("nothing was delivered")

    async with app:
        body, received = await asyncio.to_thread(pika_program)
    assert body == b'{"order_id":"42","cents":990}'
    assert (received.content_type, received.delivery_mode) == ("application/json", 2)
    await delete_queue(amqp_url, f"{name}.pika")


async def delete_queue(amqp_url: str, queue: str) -> None:
    def delete() -> None:
        with pika_connection(amqp_url) as connection:
            connection.channel().queue_delete(queue)

    await asyncio.to_thread(delete)
