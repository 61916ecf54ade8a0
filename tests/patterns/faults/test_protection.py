"""Encryption and signing in every fault: few can touch them, because they keep nothing between two messages."""

from __future__ import annotations

import asyncio
import secrets
from datetime import timedelta

from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.patterns.replay_attack import publish_captured
from tests.support.async_client import take_one
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import Encryption, Once, RedisStore, Signing
from warren.sdk import App, Command

MATRIX = Matrix("protection", page="docs/patterns/protection.md")

KEY = secrets.token_bytes(32)


class Vault:
    """An App whose messages are signed and encrypted, and what it took."""

    def __init__(
        self,
        app: App,
        name: str,
        *,
        once: Once | None = None,
        max_age: timedelta | None = None,
        secret: bytes = KEY,
    ) -> None:
        class Pay(Command, queue=f"{name}.pay", type="pay"):
            amount: int

        self.app = app
        self.pay = Pay
        self.taken: list[int] = []
        app.include(Signing.hmac({"k": secret}, current="k", max_age=max_age))
        app.include(Encryption({"k": secret}, current="k", max_age=max_age))

        @app.handle(Pay, once=once)
        async def pay(command: Pay) -> None:
            await self.before()
            self.taken.append(command.amount)
            await self.after()

    async def before(self) -> None:
        """Run before the effect; tests override this."""

    async def after(self) -> None:
        """Run after the effect; tests override this."""


def protected(app: App) -> App:
    app.include(Signing.hmac({"k": KEY}, current="k"))
    app.include(Encryption({"k": KEY}, current="k"))
    return app


async def payer(worker: WorkerChannel, url: str, name: str, secret: str, stop: str) -> None:
    """Take payments in a worker that stops before or after the effect."""
    vault = Vault(App(url), name, secret=bytes.fromhex(secret))

    async def stand_still() -> None:
        await worker.report_and_wait("stands still")

    setattr(vault, stop, stand_still)
    async with vault.app:
        await worker.report_and_wait("ready")


async def succeeded(url: str, workers: Workers, new_app: NewApp, name: str, stop: str) -> None:
    """Kill a worker that has decrypted a message; check that the next one decrypts it again."""
    doomed = await workers.start(payer, url=url, name=name, secret=KEY.hex(), stop=stop)
    await workers.wait_for("ready")
    vault = Vault(new_app(), name)
    async with protected(new_app()) as sender:
        await sender.publish(vault.pay(amount=1))
    await workers.wait_for("stands still")
    doomed.kill()
    async with vault.app:
        await eventually(lambda: vault.taken == [1], "it is taken by another")


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "the message is redelivered, and is checked and decrypted again",
)
async def test_a_worker_dies_before_its_effect(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    await succeeded(amqp_url, workers, new_app, name, "before")


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the message is redelivered, and is checked and decrypted again",
)
async def test_a_worker_dies_after_its_effect(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    await succeeded(amqp_url, workers, new_app, name, "after")


MATRIX.spared(
    Fault.REORDERING,
    "no effect: each message is protected separately",
)
MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store",
)


@MATRIX.shows(
    Fault.LOST_ACK,
    "the message is redelivered, and is checked and decrypted again",
)
async def test_the_acknowledgement_is_lost(amqp_url: str, new_app: NewApp, name: str) -> None:
    async with Proxy(amqp_url) as proxy:
        vault = Vault(new_app(proxy.url), name)

        async def deafen() -> None:
            proxy.to_server.hold()

        vault.after = deafen  # type: ignore[method-assign]
        async with vault.app as app:
            await app.publish(vault.pay(amount=1))
            await eventually(lambda: vault.taken == [1], "it is taken")
            vault.after = Vault.after.__get__(vault)  # type: ignore[method-assign]
            proxy.cut()
            proxy.to_server.release()
            await eventually(lambda: vault.taken == [1, 1], "it is taken again")


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the message is published again with the same id, and may arrive twice; `Once` recognises it by its id",
)
async def test_the_confirm_is_lost(amqp_url: str, redis_url: str, new_app: NewApp, name: str) -> None:
    once = Once(RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE))
    vault = Vault(new_app(), name, once=once)
    async with vault.app, Proxy(amqp_url) as proxy, protected(App(proxy.url)) as sender:
        await sender.publish(vault.pay(amount=1))
        proxy.to_client.hold()
        publishing = asyncio.ensure_future(sender.publish(vault.pay(amount=2)))
        await eventually(lambda: 2 in vault.taken, "the broker has it")
        proxy.cut()
        proxy.to_client.release()
        await publishing
        await eventually(lambda: once.statistics.duplicates >= 1, "the copy is known")
    assert vault.taken == [1, 2]


@MATRIX.shows(
    Fault.DUPLICATE,
    "a copy, also one that an attacker captured and publishes again, has the same id, which cannot be "
    "changed: `Once` recognises it",
)
async def test_a_captured_message_is_published_again(redis_url: str, new_app: NewApp, name: str) -> None:
    once = Once(RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE))
    vault = Vault(new_app(), name, once=once)
    queue, url = f"{name}.pay", vault.app.url or ""
    async with vault.app as app:
        await app.publish(vault.pay(amount=1), exchange="", key=f"{queue}.dead")
        captured = await take_one(url, f"{queue}.dead")
        await publish_captured(url, queue, captured)
        await publish_captured(url, queue, captured)
        await eventually(lambda: once.statistics.duplicates == 1, "the copy is known")
        await publish_captured(url, queue, captured, message_id="another")
        dead = await take_one(url, f"{queue}.dead")
    assert vault.taken == [1]
    assert "the message was changed on its way" in str(dead.headers["warren-dead-error"])


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "waiting messages are encrypted on the disk too, and are decrypted when they are delivered",
)
async def test_the_broker_is_killed_while_messages_wait(mortal_broker: BrokerProcess, name: str) -> None:
    vault = Vault(App(mortal_broker.url), name)
    async with protected(App(mortal_broker.url)) as sender:
        await sender.publish(vault.pay(amount=1))
    await asyncio.to_thread(mortal_broker.kill)
    await asyncio.to_thread(mortal_broker.start)
    async with vault.app:
        await eventually(lambda: vault.taken == [1], "it is taken")


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect without `max_age`; with it, clocks may differ by as much, and older or younger messages "
    "are dead-lettered",
)
async def test_the_clock_of_the_sender_is_wrong(amqp_url: str, new_app: NewApp, name: str) -> None:
    vault = Vault(new_app(), name, max_age=timedelta(minutes=5))
    async with vault.app:
        for minutes in (4, -10):
            async with protected(App(amqp_url, clock=SkewedClock(60.0 * minutes))) as sender:
                await sender.publish(vault.pay(amount=minutes))
        dead = await take_one(amqp_url, f"{name}.pay.dead")
        await eventually(lambda: vault.taken == [4], "one is taken")
    assert "differs from now by more than 0:05:00" in str(dead.headers["warren-dead-error"])
