"""Encryption and signing on a broker: accepted and refused messages, and the content that an observer can read."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from aio_pika.abc import AbstractIncomingMessage
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.patterns.conftest import NewApp
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.patterns.replay_attack import publish_captured
from tests.support.async_client import take_one
from tests.support.polling import eventually
from warren.patterns import Encryption, Signing
from warren.sdk import App, Command, ConfigError, Queue, Request

KEY, OTHER = secrets.token_bytes(32), secrets.token_bytes(32)
PRIVATE = Ed25519PrivateKey.generate()
PUBLIC = {"k1": PRIVATE.public_key().public_bytes_raw()}

Protection = Encryption | Signing
Make = Callable[..., Protection]


def encryption(keys: dict[str, bytes] | None = None, **settings: Any) -> Encryption:
    return Encryption(keys or {"k1": KEY}, current="k1", **settings)


def shared(keys: dict[str, bytes] | None = None, **settings: Any) -> Signing:
    return Signing.hmac(keys or {"k1": KEY}, current="k1", **settings)


def public(keys: dict[str, bytes] | None = None, **settings: Any) -> Signing:
    """Keys are private ones here, so that another key is another signer."""
    own = PRIVATE if keys is None else Ed25519PrivateKey.from_private_bytes(keys["k1"])
    known = {"k1": own.public_key().public_bytes_raw()}
    return Signing.ed25519(known, private=own.private_bytes_raw(), current="k1", **settings)


@pytest.fixture(params=[encryption, shared, public], ids=["aes-gcm", "hmac", "ed25519"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


class Road:
    """A message as it is on its way, which others may change; and the App at its end."""

    def __init__(self, new_app: NewApp, name: str, *protections: Protection) -> None:
        class Pay(Command, queue=Queue(f"{name}.in"), type="pay"):
            amount: int

        self.pay = Pay
        self.taken: list[int] = []
        self.queue = f"{name}.in"
        self.box = f"{name}.box"
        self.new_app = new_app
        self.app = new_app()
        for protection in protections:
            self.app.include(protection)

        @self.app.handle(Pay)
        async def pay(command: Pay) -> None:
            self.taken.append(command.amount)

    async def sent_by(
        self, *protections: Protection, clock: float = 0.0, **address: Any
    ) -> AbstractIncomingMessage:
        """Return a message as an App with this protection publishes it."""
        sender = self.new_app()
        if clock:
            sender = App(sender.url, clock=SkewedClock(clock))
        for protection in protections:
            sender.include(protection)
        sender.declare(Queue(self.box))
        async with sender as app:
            await app.publish(self.pay(amount=100), exchange="", key=self.box, **address)
            return await take_one(app.url or "", self.box)

    async def arrive(self, message: AbstractIncomingMessage, **changed: Any) -> None:
        await publish_captured(self.app.url or "", self.queue, message, **changed)

    async def rejected(self) -> str:
        dead = await take_one(self.app.url or "", f"{self.queue}.dead")
        return str(dead.headers["warren-dead-error"])


async def test_what_is_protected_arrives(new_app: NewApp, name: str, make: Make) -> None:
    protection = make()
    road = Road(new_app, name, protection)
    async with road.app as app:
        await app.publish(road.pay(amount=7))
        await eventually(lambda: road.taken == [7], "it arrives")
    assert (protection.statistics.protected, protection.statistics.accepted) == (1, 1)


async def test_nobody_reads_what_is_encrypted(new_app: NewApp, name: str) -> None:
    road = Road(new_app, name, encryption())
    sealed = await road.sent_by(encryption())
    assert b"amount" not in sealed.body
    assert (sealed.content_type, sealed.content_encoding, sealed.type) == (
        "application/json",
        "aes-gcm",
        "pay",
    )
    assert (await road.sent_by(encryption())).body != sealed.body


async def test_whatever_is_changed_is_refused(new_app: NewApp, name: str, make: Make) -> None:
    road = Road(new_app, name, make())
    message = await road.sent_by(make())
    header = "warren-encryption" if make is encryption else "warren-signed"
    algorithm, _, at = str(message.headers[header]).split(";")

    def terms_of(text: str) -> dict[str, Any]:
        return {"headers": {**message.headers, header: text}}

    changed = "the message was changed on its way"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"body": message.body[:-1] + bytes([message.body[-1] ^ 1])}, changed),
        ({"body": message.body + b" "}, changed),
        ({"body": b""}, changed),
        ({"message_id": "another"}, changed),
        ({"type": "refund"}, changed),
        ({"content_type": "text/plain"}, changed),
        ({"correlation_id": "another"}, changed),
        (terms_of(f"{algorithm};k1;{int(at) + 1}"), changed),
        (terms_of(f"{algorithm};k2;{at}"), "'k2', which this process does not have"),
        (terms_of(f"none;k1;{at}"), "the message has no valid"),
        (terms_of("k1"), "the message has no valid"),
        ({"headers": {}}, "the message is not"),
    ]
    async with road.app:
        for change, reason in cases:
            await road.arrive(message, **change)
            assert reason in await road.rejected(), change
        await road.arrive(message)
        await eventually(lambda: road.taken == [100], "the message itself is taken")


async def test_another_key_of_the_same_name_is_no_key(new_app: NewApp, name: str, make: Make) -> None:
    road = Road(new_app, name, make())
    async with road.app:
        await road.arrive(await road.sent_by(make({"k1": OTHER})))
        assert "changed on its way, or not" in await road.rejected()
        assert road.taken == []


async def test_what_is_too_old_or_from_the_future_is_refused(new_app: NewApp, name: str, make: Make) -> None:
    road = Road(new_app, name, make(max_age=timedelta(minutes=5)))
    async with road.app:
        for hours in (-1, 1):
            await road.arrive(await road.sent_by(make(), clock=hours * 3600.0))
            assert "by more than 0:05:00" in await road.rejected()
        await road.arrive(await road.sent_by(make(), clock=-60.0))
        await eventually(lambda: road.taken == [100], "one that is young enough is taken")


async def test_headers_that_are_named_are_bound(new_app: NewApp, name: str, make: Make) -> None:
    road = Road(new_app, name, make(headers=["tenant"]))
    message = await road.sent_by(make(headers=["tenant"]), headers={"tenant": "blue", "other": 1})
    async with road.app:
        await road.arrive(message, headers={**message.headers, "tenant": "red"})
        assert "changed on its way" in await road.rejected()
        await road.arrive(message, headers={**message.headers, "other": 2})
        await eventually(lambda: road.taken == [100], "a header that is not bound may change")


async def test_an_application_moves_to_protection_step_by_step(
    new_app: NewApp, name: str, make: Make
) -> None:
    protection = make(required=False)
    road = Road(new_app, name, protection)
    async with road.app:
        await road.arrive(await road.sent_by())
        await road.arrive(await road.sent_by(make()))
        await eventually(lambda: road.taken == [100, 100], "both are taken")
    assert (protection.statistics.unprotected, protection.statistics.accepted) == (1, 1)


async def test_keys_change_while_the_app_runs(new_app: NewApp, name: str) -> None:
    own = encryption()
    road = Road(new_app, name, own)
    old = await road.sent_by(encryption())
    async with road.app as app:
        own.use({"k1": KEY, "k2": OTHER}, current="k2")
        await road.arrive(old)
        await app.publish(road.pay(amount=2))
        await eventually(lambda: sorted(road.taken) == [2, 100], "old and new are read")
        own.use({"k2": OTHER}, current="k2")
        await road.arrive(old)
        assert "'k1', which this process does not have" in await road.rejected()


async def test_what_is_signed_and_then_encrypted(new_app: NewApp, name: str) -> None:
    road = Road(new_app, name, shared(), encryption())
    async with road.app as app:
        await app.publish(road.pay(amount=7))
        await eventually(lambda: road.taken == [7], "it arrives")
        await road.arrive(await road.sent_by(encryption()))
        assert "the message is not signed" in await road.rejected()


async def test_signed_and_encrypted_with_a_reply(new_app: NewApp, name: str) -> None:
    class Double(Request[int], queue=f"{name}.double"):
        number: int

    app = new_app()
    for protection in (shared(), encryption()):
        app.include(protection)

    @app.handle(Double)
    async def double(request: Double) -> int:
        return 2 * request.number

    async with app:
        assert await app.call(Double(number=21)) == 42


async def test_a_dead_letter_stays_encrypted(new_app: NewApp, name: str) -> None:
    road = Road(new_app, name, encryption())

    class Odd(Command, queue=road.queue, type="pay"):
        amount: str

    async with road.app as app:
        await app.publish(Odd(amount="secret"))
        dead = await take_one(app.url or "", f"{road.queue}.dead")
    assert dead.headers["warren-dead-reason"] == "undecodable"
    assert b"secret" not in dead.body
    assert "secret" not in str(dead.headers)


async def test_who_has_no_private_key_only_checks(new_app: NewApp, name: str) -> None:
    checking = Signing.ed25519(PUBLIC)
    road = Road(new_app, name, checking)
    async with road.app as app:
        await road.arrive(await road.sent_by(public()))
        await eventually(lambda: road.taken == [100], "a signature that others made is checked")
        await app.publish(road.pay(amount=1))
        assert "the message is not signed" in await road.rejected()


def test_wrong_keys_are_said_at_once_and_never_shown() -> None:
    with pytest.raises(ConfigError, match="has 5 bytes"):
        Encryption({"k1": b"short"}, current="k1")
    with pytest.raises(ConfigError, match="no key 'k2'; known are: k1"):
        Encryption({"k1": KEY}, current="k2")
    with pytest.raises(ConfigError, match="without ';'"):
        Encryption({"a;b": KEY}, current="a;b")
    with pytest.raises(ConfigError, match="at least 32"):
        Signing.hmac({"k1": b"short"}, current="k1")
    with pytest.raises(ConfigError, match="public key 'k1' has 3 bytes"):
        Signing.ed25519({"k1": b"abc"})
    with pytest.raises(ConfigError, match="private key must have 32 bytes and an id"):
        Signing.ed25519(PUBLIC, private=b"abc", current="k1")
    with pytest.raises(ConfigError, match="does not belong to the public key"):
        Signing.ed25519(PUBLIC, private=OTHER, current="k1")
    for protection in (encryption(), shared(), public()):
        assert "k1" in repr(protection)
        assert repr(KEY) not in repr(protection) + repr(vars(protection))
