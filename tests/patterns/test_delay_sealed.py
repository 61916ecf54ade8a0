"""Encrypted messages stay encrypted while they wait, are retried or are replayed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tests.patterns.conftest import NewApp
from tests.support.async_client import take_one
from tests.support.polling import eventually
from warren.patterns import BinaryDelayQueues, Delay, Encryption, ParkingLot, SqliteStore, replay
from warren.sdk import Command, Delivery, Retry

KEYS = {"2026": bytes(range(32))}


async def test_an_encrypted_message_is_delayed_retried_dead_lettered_and_replayed(
    new_app: NewApp, amqp_url: str, name: str, tmp_path: Path
) -> None:
    class SendSecret(Command, queue=name):
        secret: str

    app = new_app()
    app.include(Encryption(KEYS, current="2026"))
    delay = Delay(
        f"{name}.delay",
        strategy=BinaryDelayQueues(unit=timedelta(milliseconds=50), levels=6),
        store=SqliteStore(tmp_path / "delays.sqlite"),
    )
    app.include(delay)
    handled: list[tuple[str, int]] = []
    failing = True

    @app.handle(SendSecret, retry=Retry(1).then("50ms"))
    async def handle(message: SendSecret, delivery: Delivery) -> None:
        handled.append((message.secret, delivery.attempt))
        if failing:
            raise ConnectionError("not yet")

    async with app:
        await delay.after(SendSecret(secret="xyzzy"), timedelta(milliseconds=100), cancel_key="k")
        dead = await take_one(amqp_url, f"{name}.dead")
        assert b"xyzzy" not in dead.body
        assert handled == [("xyzzy", 1), ("xyzzy", 2)]
        await delay.after(SendSecret(secret="plugh"), timedelta(milliseconds=50))
        await eventually(lambda: handled[-1] == ("plugh", 2), "it fails as well")
        failing = False

        async def replayed() -> bool:
            async with ParkingLot(amqp_url, f"{name}.dead") as lot:
                return (await replay(lot, app)).done == 1

        await eventually(replayed, "it is replayed")
        await eventually(lambda: handled[-1] == ("plugh", 1), "it is handled")
