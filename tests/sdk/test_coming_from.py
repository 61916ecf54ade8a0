"""The pages "Coming from": their programs print the expected lines, and the other tools' messages are understood.

The messages of FastStream 0.7, Celery 5.7, Spring AMQP 4.1 and MassTransit 8.5 are written here as those tools write them.
"""

from __future__ import annotations

import asyncio
import json
import re
import runpy
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from tests.support.example_programs import EXAMPLES
from warren.broker import Broker

PAGES = EXAMPLES.parent / "docs" / "coming-from"
PROMISED = {
    "coming_from_faststream": ["42: 990 cents in EUR", "42: mail sent"],
    "coming_from_celery": ["charged 990", "charged 10", "4200", "8300"],
    "interop_celery": ["shop.charge: order 42, 990 cents", "charged 990"],
    "coming_from_aio_pika": ["billed 42, key order.placed"],
    "interop_aio_pika": [
        "Warren: order 42",
        "aio-pika: order 42, order_placed",
        "Warren: order 43",
        "aio-pika: order 43, order_placed",
    ],
    "coming_from_spring": ["billed 42", "stock 7"],
    "interop_masstransit": ["billed 42 urn:message:Shop.Contracts:OrderPlaced"],
}

FASTSTREAM = (
    b'{"order_id":"42","cents":990}',
    {
        "content_type": "application/json",
        "correlation_id": "e9873eae-3e0c-49a0-bb2e-49cae1c38f22",
        "message_id": "0e805dad285d419790524d51189d6140",
        "app_id": "faststream-0.7.8",
        "priority": 0,
        "timestamp": 1795457161,
    },
)
PLAIN: tuple[bytes, dict[str, Any]] = (b'{"order_id": "42"}', {})
"""A message without properties, as pika publishes it unless it is told otherwise."""
CELERY = (
    b'[["42", 990], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]',
    {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "correlation_id": "dc892c36-7953-4a61-8a8c-b0589dbc721a",
        "reply_to": "492fddc1-1ada-3d55-90c5-61b59073edb9",
        "headers": {
            "lang": "py",
            "task": "shop.charge",
            "id": "dc892c36-7953-4a61-8a8c-b0589dbc721a",
            "eta": None,
            "retries": 0,
            "timelimit": [None, None],
            "stamps": {},
        },
    },
)
SPRING = (
    b'{"orderId":"42","total":9.90}',
    {
        "content_type": "application/json",
        "content_encoding": "UTF-8",
        "headers": {"__TypeId__": "com.shop.OrderPlaced"},
    },
)
JAVA_OBJECT = (b"\xac\xed\x00\x05", {"content_type": "application/x-java-serialized-object"})
MASSTRANSIT = (
    json.dumps(
        {
            "messageId": "181c0000-6393-3630-36a4-08daf4e7c6da",
            "conversationId": None,
            "destinationAddress": "rabbitmq://localhost/Shop.Contracts:OrderPlaced",
            "messageType": ["urn:message:Shop.Contracts:OrderPlaced"],
            "message": {"orderId": "42", "timestamp": "2026-01-12T21:55:53.714Z"},
            "sentTime": "2026-01-12T21:55:53.715882Z",
            "headers": {"Application-Header": "some value"},
            "host": {"machineName": "MyComputer", "processId": 427},
        }
    ).encode(),
    {"content_type": "application/vnd.masstransit+json"},
)


@pytest.mark.parametrize("example", PROMISED)
def test_a_program_does_what_it_says(
    example: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AMQP_URL", "memory://")
    runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == PROMISED[example]


def programs_of_other_tools(page: Path) -> list[str]:
    return re.findall(r'```python title="[^"]+"\n((?!--8<--).*?)```', page.read_text(), re.DOTALL)


def test_the_programs_of_other_tools_are_python() -> None:
    programs = [(page.name, text) for page in PAGES.glob("*.md") for text in programs_of_other_tools(page)]
    assert {name for name, _ in programs} == {"aio-pika.md", "celery-bridge.md", "celery.md", "faststream.md"}
    for name, text in programs:
        compile(text, name, "exec")


async def test_the_program_with_aio_pika_does_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    [text] = programs_of_other_tools(PAGES / "aio-pika.md")
    async with Broker() as broker:
        assert '"amqp://localhost"' in text
        program = compile(text.replace("amqp://localhost", broker.url), "aio-pika.md", "exec")
        await asyncio.to_thread(exec, program, {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines() == PROMISED["coming_from_aio_pika"]


@pytest.mark.parametrize(
    ("example", "exchange", "key", "message", "queue", "reason"),
    [
        ("coming_from_faststream", "orders", "order.billed", FASTSTREAM, "mail", None),
        ("coming_from_aio_pika", "orders", "order.placed", PLAIN, "billing", None),
        ("interop_celery", "", "charges", CELERY, "charges", None),
        ("coming_from_spring", "orders", "order.placed", SPRING, "billing", None),
        ("coming_from_spring", "orders", "order.placed", JAVA_OBJECT, "billing", "unknown_content_type"),
        ("interop_masstransit", "Shop.Contracts:OrderPlaced", "", MASSTRANSIT, "billing", None),
    ],
    ids=["faststream", "pika", "celery", "spring", "spring-java-object", "masstransit"],
)
async def test_a_message_of_the_other_tool_is_handled(
    example: str,
    exchange: str,
    key: str,
    message: tuple[bytes, dict[str, Any]],
    queue: str,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Broker() as broker:
        monkeypatch.setenv("AMQP_URL", broker.url)
        program = runpy.run_path(str(EXAMPLES / f"{example}.py"))
        async with (
            program["app"] as app,
            await aio_pika.connect(broker.url) as connection,
            connection.channel(on_return_raises=True) as channel,
        ):
            target = await channel.get_exchange(exchange) if exchange else channel.default_exchange
            body, properties = message
            await target.publish(aio_pika.Message(body, **properties), key)
            if reason is None:
                handled = next(program[name] for name in ("done", "charged", "billed") if name in program)
                async with asyncio.timeout(60):
                    await handled.wait()
            else:
                async with await app.get(f"{queue}.dead", timeout=60) as dead:
                    assert dead.headers["warren-dead-reason"] == reason


async def test_a_task_is_published_as_celery_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker() as broker:
        monkeypatch.setenv("AMQP_URL", broker.url)
        program = runpy.run_path(str(EXAMPLES / "interop_celery.py"))
        async with (
            program["app"],
            await aio_pika.connect(broker.url) as connection,
            connection.channel() as channel,
        ):
            queue = await channel.declare_queue("mail", durable=True)
            sent = await program["send_mail"].delay("42", text="hello")
            message = await queue.get(no_ack=True, timeout=60)
            embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
            assert json.loads(message.body) == [["42"], {"text": "hello"}, embed]
            assert (message.content_type, message.delivery_mode) == ("application/json", 2)
            headers = {name: message.headers[name] for name in ("lang", "task", "id")}
            assert headers == {"lang": "py", "task": "shop.mail", "id": sent.task_id}


async def test_an_envelope_is_published_as_masstransit_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker() as broker:
        monkeypatch.setenv("AMQP_URL", broker.url)
        program = runpy.run_path(str(EXAMPLES / "interop_masstransit.py"))
        contract = program["CONTRACT"]
        async with (
            program["app"] as app,
            await aio_pika.connect(broker.url) as connection,
            connection.channel() as channel,
        ):
            queue = await channel.declare_queue("endpoint", durable=True)
            await queue.bind(contract)
            order = program["OrderPlaced"](order_id="42")
            envelope = program["Envelope"](message=order, message_type=[f"urn:message:{contract}"])
            await app.publish(envelope, exchange=contract)
            message = await queue.get(no_ack=True, timeout=60)
            assert message.content_type == "application/vnd.masstransit+json"
            read = json.loads(message.body)
            assert (read["message"], read["messageType"]) == (
                {"orderId": "42"},
                ["urn:message:Shop.Contracts:OrderPlaced"],
            )
