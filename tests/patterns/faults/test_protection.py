"""Encryption and signing in every fault: few can touch them, because they keep nothing between two messages."""

from __future__ import annotations

import secrets
from datetime import timedelta

from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import (
    BROKER_KILLED_WHILE_WAITING,
    CRASH_AFTER_EFFECT,
    CRASH_BEFORE_EFFECT,
    LOST_ACKNOWLEDGEMENT,
    LOST_CONFIRM,
    Process,
    handled_again,
    handled_by_successor,
    recognised,
)
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.patterns.replay_attack import publish_captured
from tests.support.async_client import take_one
from tests.support.polling import eventually
from warren.patterns import Encryption, Once, RedisStore, Signing
from warren.sdk import App, Command

MATRIX = Matrix("protection", page="docs/patterns/protection.md")

KEY = secrets.token_hex(32)


class Vault(Process):
    """A process whose messages are signed and encrypted.

    :param secret: the key of both, in hexadecimal digits
    """

    servers = ("redis_url",)

    def __init__(
        self,
        app: App,
        name: str,
        redis_url: str,
        *,
        handles: bool = True,
        once: bool = False,
        max_age: timedelta | None = None,
        secret: str = KEY,
    ) -> None:
        class Pay(Command, queue=f"{name}.pay", type="pay"):
            amount: int

        super().__init__(app, name)
        self.pay = Pay
        self.once = Once(RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE)) if once else None
        keys = {"k": bytes.fromhex(secret)}
        app.include(Signing.hmac(keys, current="k", max_age=max_age))
        app.include(Encryption(keys, current="k", max_age=max_age))
        if handles:

            @app.handle(Pay, once=self.once)
            async def pay(command: Pay) -> None:
                await self.handle(command.amount)

    async def publish(self, number: int) -> None:
        await self.app.publish(self.pay(amount=number))

    @property
    def recognised(self) -> int:
        assert self.once is not None
        return self.once.statistics.duplicates


CRASH_BEFORE_EFFECT.of(
    MATRIX,
    Vault,
    "the message is redelivered, and is checked and decrypted again",
    handled_by_successor,
    secret=KEY,
)
CRASH_AFTER_EFFECT.of(
    MATRIX,
    Vault,
    "the message is redelivered, and is checked and decrypted again",
    handled_by_successor,
    secret=KEY,
)
LOST_ACKNOWLEDGEMENT.of(
    MATRIX, Vault, "the message is redelivered, and is checked and decrypted again", handled_again
)
LOST_CONFIRM.of(
    MATRIX,
    Vault,
    "the message is published again with the same id, and may arrive twice; `Once` recognises it by its id",
    recognised,
    once=True,
)
BROKER_KILLED_WHILE_WAITING.of(
    MATRIX,
    Vault,
    "waiting messages are encrypted on the disk too, and are decrypted when they are delivered",
    handled_by_successor,
)


MATRIX.spared(
    Fault.REORDERING,
    "no effect: each message is protected separately",
)
MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store",
)


@MATRIX.shows(
    Fault.DUPLICATE,
    "a copy, also one that an attacker captured and publishes again, has the same id, which cannot be "
    "changed: `Once` recognises it",
)
async def test_a_captured_message_is_published_again(redis_url: str, new_app: NewApp, name: str) -> None:
    vault = Vault(new_app(), name, redis_url, once=True)
    queue, url = f"{name}.pay", vault.app.url or ""
    async with vault.app as app:
        await app.publish(vault.pay(amount=1), exchange="", key=f"{queue}.dead")
        captured = await take_one(url, f"{queue}.dead")
        await publish_captured(url, queue, captured)
        await publish_captured(url, queue, captured)
        await eventually(lambda: vault.recognised == 1, "the copy is known")
        await publish_captured(url, queue, captured, message_id="another")
        dead = await take_one(url, f"{queue}.dead")
    assert vault.handled == [1]
    assert "the message was changed on its way" in str(dead.headers["warren-dead-error"])


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect without `max_age`; with it, clocks may differ by as much, and older or younger messages "
    "are dead-lettered",
)
async def test_the_clock_of_the_publisher_is_wrong(
    amqp_url: str, redis_url: str, new_app: NewApp, name: str
) -> None:
    vault = Vault(new_app(), name, redis_url, max_age=timedelta(minutes=5))
    async with vault.app:
        for minutes in (4, -10):
            clock = SkewedClock(60.0 * minutes)
            publisher = Vault(App(amqp_url, clock=clock), name, redis_url, handles=False)
            async with publisher.app:
                await publisher.publish(minutes)
        dead = await take_one(amqp_url, f"{name}.pay.dead")
        await vault.has_handled(4)
    assert "differs from now by more than 0:05:00" in str(dead.headers["warren-dead-error"])
