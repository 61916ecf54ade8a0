"""Forwarding: the same message at another address, and the original address of dead letters."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from warren.sdk import App, BatchError, Command, DeadLetter, Delivery, Event, Queue, Unroutable


def forwarding(app: App, source: str, target: str) -> None:
    @app.handle(dict, queue=Queue(source, type="classic", message_ttl=timedelta(hours=1)))
    async def on(body: dict[str, int], delivery: Delivery) -> None:
        await app.forward(delivery, key=target, headers={"added": 1, "removed": None})


async def test_a_forwarded_message_keeps_id_properties_and_body(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    app.declare(Queue(f"{name}.on"))
    forwarding(app, name, f"{name}.on")
    async with app:
        await app.publish(
            {"n": 1},
            key=name,
            message_id="m1",
            expiration=timedelta(minutes=1),
            headers={
                "kept": "x",
                "removed": 1,
                "x-death": [{"queue": "old", "reason": "expired"}],
                "CC": [name + ".on"],
            },
        )
        copied = await amqp_client.take(f"{name}.on")
        forwarded = await amqp_client.take(f"{name}.on")
    if copied.headers.get("added") is not None:
        copied, forwarded = forwarded, copied
    assert (forwarded.message_id, forwarded.body, forwarded.content_type) == (
        "m1",
        b'{"n":1}',
        "application/json",
    )
    assert forwarded.expiration is None
    assert (forwarded.headers["kept"], forwarded.headers["added"]) == ("x", 1)
    assert not {"removed", "x-death", "CC"} & set(forwarded.headers)
    await amqp_client.holds(f"{name}.on", 0)


async def test_a_dead_letter_keeps_its_original_address(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Rang(Event, exchange=f"{name}.bells", key="bell.rang", audience=[name]):
        pass

    app = make_app()

    @app.handle(Rang, queue=name)
    async def rang(bell: Rang) -> None:
        raise DeadLetter("too loud")

    async with app:
        await app.publish(Rang(), headers={"warren-deaths": 2, "warren-dead-first-time": 17})
        dead = await amqp_client.take(f"{name}.dead")
    assert (dead.headers["warren-exchange"], dead.headers["warren-key"]) == (f"{name}.bells", "bell.rang")
    assert (dead.headers["warren-deaths"], dead.headers["warren-dead-first-time"]) == (3, 17)


async def test_an_earlier_original_address_is_kept(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ping(Command, queue=name):
        pass

    app = make_app()

    @app.handle(Ping)
    async def ping(message: Ping) -> None:
        raise DeadLetter("no")

    async with app:
        await app.publish(Ping(), headers={"warren-exchange": "first", "warren-key": "a.b"})
        dead = await amqp_client.take(f"{name}.dead")
    assert (dead.headers["warren-exchange"], dead.headers["warren-key"]) == ("first", "a.b")
    assert dead.headers["warren-deaths"] == 1
    assert dead.headers["warren-dead-first-time"] == dead.headers["warren-dead-time"]


@pytest.mark.parametrize("by", ["forward", "transaction"])
async def test_a_delivery_that_shared_its_id_is_still_missed_where_no_queue_takes_it(
    make_app: MakeApp, name: str, by: str
) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        await asyncio.gather(*(app.publish(b"1", key=name, message_id="same") for _ in range(3)))
        held = [await app.get(name) for _ in range(3)]
        for delivery in held:
            assert delivery is not None
            if by == "forward":
                with pytest.raises(Unroutable):
                    await app.forward(delivery, key=f"{name}.missing")
                continue
            with pytest.raises(BatchError) as caught:
                async with app.transaction() as tx:
                    await tx.publish(
                        b"1", key=f"{name}.missing", message_id="same", headers=dict(delivery.headers)
                    )
            assert [failure.index for failure in caught.value.report.failures] == [0]
