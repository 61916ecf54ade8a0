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
MakeProtection = Callable[..., Protection]


def encryption(keys: dict[str, bytes] | None = None, **settings: Any) -> Encryption:
    return Encryption(keys or {"k1": KEY}, current="k1", **settings)


def hmac_signing(keys: dict[str, bytes] | None = None, **settings: Any) -> Signing:
    return Signing.hmac(keys or {"k1": KEY}, current="k1", **settings)


def ed25519_signing(keys: dict[str, bytes] | None = None, **settings: Any) -> Signing:
    """Keys are private ones here, so that another key is another signer."""
    own = PRIVATE if keys is None else Ed25519PrivateKey.from_private_bytes(keys["k1"])
    known = {"k1": own.public_key().public_bytes_raw()}
    return Signing.ed25519(known, private=own.private_bytes_raw(), current="k1", **settings)


@pytest.fixture(params=[encryption, hmac_signing, ed25519_signing], ids=["aes-gcm", "hmac", "ed25519"])
def make_protection(request: pytest.FixtureRequest) -> MakeProtection:
    made: MakeProtection = request.param
    return made


class ProtectedApp:
    """App that handles protected messages, with messages that a test captures and may change in transit."""

    def __init__(self, new_app: NewApp, name: str, *protections: Protection) -> None:
        class Pay(Command, queue=Queue(f"{name}.in"), type="pay"):
            amount: int

        self.pay = Pay
        self.handled: list[int] = []
        self.queue = f"{name}.in"
        self.capture_queue = f"{name}.captured"
        self.new_app = new_app
        self.app = new_app()
        for protection in protections:
            self.app.include(protection)

        @self.app.handle(Pay)
        async def pay(command: Pay) -> None:
            self.handled.append(command.amount)

    async def captured_from(
        self, *protections: Protection, clock: float = 0.0, **address: Any
    ) -> AbstractIncomingMessage:
        """Return a message that an App with these protections has published."""
        sender = self.new_app()
        if clock:
            sender = App(sender.url, clock=SkewedClock(clock))
        for protection in protections:
            sender.include(protection)
        sender.declare(Queue(self.capture_queue))
        async with sender as app:
            await app.publish(self.pay(amount=100), exchange="", key=self.capture_queue, **address)
            return await take_one(app.url or "", self.capture_queue)

    async def deliver(self, message: AbstractIncomingMessage, **changed: Any) -> None:
        await publish_captured(self.app.url or "", self.queue, message, **changed)

    async def rejection_reason(self) -> str:
        dead = await take_one(self.app.url or "", f"{self.queue}.dead")
        return str(dead.headers["warren-dead-error"])


async def test_a_protected_message_is_accepted(
    new_app: NewApp, name: str, make_protection: MakeProtection
) -> None:
    protection = make_protection()
    receiver = ProtectedApp(new_app, name, protection)
    async with receiver.app as app:
        await app.publish(receiver.pay(amount=7))
        await eventually(lambda: receiver.handled == [7], "it arrives")
    assert (protection.statistics.protected, protection.statistics.accepted) == (1, 1)


async def test_an_encrypted_body_contains_no_plain_text_and_differs_each_time(
    new_app: NewApp, name: str
) -> None:
    receiver = ProtectedApp(new_app, name, encryption())
    encrypted = await receiver.captured_from(encryption())
    assert b"amount" not in encrypted.body
    assert (encrypted.content_type, encrypted.content_encoding, encrypted.type) == (
        "application/json",
        "aes-gcm",
        "pay",
    )
    assert (await receiver.captured_from(encryption())).body != encrypted.body


async def test_a_changed_message_is_rejected(
    new_app: NewApp, name: str, make_protection: MakeProtection
) -> None:
    receiver = ProtectedApp(new_app, name, make_protection())
    message = await receiver.captured_from(make_protection())
    header = "warren-encryption" if make_protection is encryption else "warren-signed"
    algorithm, _, at = str(message.headers[header]).split(";")

    def terms_of(text: str) -> dict[str, Any]:
        return {"headers": {**message.headers, header: text}}

    changed = "the message was changed on its way"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"body": message.body[:-1] + bytes([message.body[-1] ^ 1])}, changed),
        ({"body": message.body + b" "}, changed),
        ({"body": b""}, changed),
        ({"message_id": "another"}, changed),
        ({"type": None}, changed),
        ({"type": "refund"}, "has no handler for type 'refund'"),
        ({"content_type": "text/plain"}, changed),
        ({"correlation_id": "another"}, changed),
        (terms_of(f"{algorithm};k1;{int(at) + 1}"), changed),
        (terms_of(f"{algorithm};k2;{at}"), "'k2', which this process does not have"),
        (terms_of(f"none;k1;{at}"), "the message has no valid"),
        (terms_of("k1"), "the message has no valid"),
        ({"headers": {}}, "the message is not"),
    ]
    async with receiver.app:
        for change, reason in cases:
            await receiver.deliver(message, **change)
            assert reason in await receiver.rejection_reason(), change
        await receiver.deliver(message)
        await eventually(lambda: receiver.handled == [100], "the unchanged message is accepted")


async def test_a_message_protected_with_another_key_of_the_same_id_is_rejected(
    new_app: NewApp, name: str, make_protection: MakeProtection
) -> None:
    receiver = ProtectedApp(new_app, name, make_protection())
    async with receiver.app:
        await receiver.deliver(await receiver.captured_from(make_protection({"k1": OTHER})))
        assert "changed on its way, or not" in await receiver.rejection_reason()
        assert receiver.handled == []


async def test_a_message_that_is_too_old_or_from_the_future_is_rejected(
    new_app: NewApp, name: str, make_protection: MakeProtection
) -> None:
    receiver = ProtectedApp(new_app, name, make_protection(max_age=timedelta(minutes=5)))
    async with receiver.app:
        for hours in (-1, 1):
            await receiver.deliver(await receiver.captured_from(make_protection(), clock=hours * 3600.0))
            assert "by more than 0:05:00" in await receiver.rejection_reason()
        await receiver.deliver(await receiver.captured_from(make_protection(), clock=-60.0))
        await eventually(lambda: receiver.handled == [100], "a message that is young enough is accepted")


async def test_a_message_with_a_changed_protected_header_is_rejected(
    new_app: NewApp, name: str, make_protection: MakeProtection
) -> None:
    receiver = ProtectedApp(new_app, name, make_protection(headers=["tenant"]))
    message = await receiver.captured_from(
        make_protection(headers=["tenant"]), headers={"tenant": "blue", "other": 1}
    )
    async with receiver.app:
        await receiver.deliver(message, headers={**message.headers, "tenant": "red"})
        assert "changed on its way" in await receiver.rejection_reason()
        await receiver.deliver(message, headers={**message.headers, "other": 2})
        await eventually(lambda: receiver.handled == [100], "a header that is not protected may change")


async def test_unprotected_messages_are_accepted_if_protection_is_not_required(
    new_app: NewApp, name: str, make_protection: MakeProtection
) -> None:
    protection = make_protection(required=False)
    receiver = ProtectedApp(new_app, name, protection)
    async with receiver.app:
        await receiver.deliver(await receiver.captured_from())
        await receiver.deliver(await receiver.captured_from(make_protection()))
        await eventually(lambda: receiver.handled == [100, 100], "both are accepted")
    assert (protection.statistics.unprotected, protection.statistics.accepted) == (1, 1)


async def test_keys_change_while_the_app_runs(new_app: NewApp, name: str) -> None:
    own = encryption()
    receiver = ProtectedApp(new_app, name, own)
    old = await receiver.captured_from(encryption())
    async with receiver.app as app:
        own.use({"k1": KEY, "k2": OTHER}, current="k2")
        await receiver.deliver(old)
        await app.publish(receiver.pay(amount=2))
        await eventually(lambda: sorted(receiver.handled) == [2, 100], "old and new are read")
        own.use({"k2": OTHER}, current="k2")
        await receiver.deliver(old)
        assert "'k1', which this process does not have" in await receiver.rejection_reason()


async def test_a_message_is_signed_and_encrypted(new_app: NewApp, name: str) -> None:
    receiver = ProtectedApp(new_app, name, hmac_signing(), encryption())
    async with receiver.app as app:
        await app.publish(receiver.pay(amount=7))
        await eventually(lambda: receiver.handled == [7], "it arrives")
        await receiver.deliver(await receiver.captured_from(encryption()))
        assert "the message is not signed" in await receiver.rejection_reason()


async def test_a_request_and_its_reply_are_signed_and_encrypted(new_app: NewApp, name: str) -> None:
    class Double(Request[int], queue=f"{name}.double"):
        number: int

    app = new_app()
    for protection in (hmac_signing(), encryption()):
        app.include(protection)

    @app.handle(Double)
    async def double(request: Double) -> int:
        return 2 * request.number

    async with app:
        assert await app.call(Double(number=21)) == 42


async def test_a_dead_letter_stays_encrypted(new_app: NewApp, name: str) -> None:
    receiver = ProtectedApp(new_app, name, encryption())

    class Odd(Command, queue=receiver.queue, type="pay"):
        amount: str

    async with receiver.app as app:
        await app.publish(Odd(amount="secret"))
        dead = await take_one(app.url or "", f"{receiver.queue}.dead")
    assert dead.headers["warren-dead-reason"] == "undecodable"
    assert b"secret" not in dead.body
    assert "secret" not in str(dead.headers)


async def test_an_app_without_a_private_key_verifies_signatures_and_sends_unsigned_messages(
    new_app: NewApp, name: str
) -> None:
    checking = Signing.ed25519(PUBLIC)
    receiver = ProtectedApp(new_app, name, checking)
    async with receiver.app as app:
        await receiver.deliver(await receiver.captured_from(ed25519_signing()))
        await eventually(lambda: receiver.handled == [100], "the signature of another App is verified")
        await app.publish(receiver.pay(amount=1))
        assert "the message is not signed" in await receiver.rejection_reason()


def test_invalid_keys_raise_config_errors_that_do_not_show_them() -> None:
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
    for protection in (encryption(), hmac_signing(), ed25519_signing()):
        assert "k1" in repr(protection)
        assert repr(KEY) not in repr(protection) + repr(vars(protection))
