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


async def test_a_sealed_message_is_delayed_retried_parked_and_replayed(
    new_app: NewApp, amqp_url: str, name: str, tmp_path: Path
) -> None:
    class Tell(Command, queue=name):
        secret: str

    app = new_app()
    app.include(Encryption(KEYS, current="2026"))
    delay = Delay(
        f"{name}.delay",
        strategy=BinaryDelayQueues(unit=timedelta(milliseconds=50), levels=6),
        store=SqliteStore(tmp_path / "delays.sqlite"),
    )
    app.include(delay)
    heard: list[tuple[str, int]] = []
    deaf = True

    @app.handle(Tell, retry=Retry(1).then("50ms"))
    async def tell(message: Tell, delivery: Delivery) -> None:
        heard.append((message.secret, delivery.attempt))
        if deaf:
            raise ConnectionError("what?")

    async with app:
        await delay.after(Tell(secret="xyzzy"), timedelta(milliseconds=100), cancel_key="k")
        dead = await take_one(amqp_url, f"{name}.dead")
        assert b"xyzzy" not in dead.body
        assert heard == [("xyzzy", 1), ("xyzzy", 2)]
        await delay.after(Tell(secret="plugh"), timedelta(milliseconds=50))
        await eventually(lambda: heard[-1] == ("plugh", 2), "it fails as well")
        deaf = False

        async def replayed() -> bool:
            async with ParkingLot(amqp_url, f"{name}.dead") as lot:
                return (await replay(lot, app)).done == 1

        await eventually(replayed, "it is replayed")
        await eventually(lambda: heard[-1] == ("plugh", 1), "it is heard")
