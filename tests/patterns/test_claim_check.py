"""Claim check: large bodies are stored outside the broker, in a folder or in an object store with S3's protocol."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiobotocore.config import AioConfig

from tests.patterns.conftest import NewApp
from tests.support.async_client import take_one
from tests.support.polling import eventually
from tests.support.s3 import s3_server
from warren.core.errors import UsageError
from warren.patterns import (
    BlobClaim,
    BlobStore,
    BlobStoreUnavailable,
    ClaimCheck,
    Encryption,
    FolderBlobStore,
    S3BlobStore,
)
from warren.sdk import Command, ConfigError, DeadLetter

LARGE = "x" * 20_000

OpenBlobs = Callable[[], BlobStore]


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["folder", "s3"])
async def open_blobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenBlobs]:
    """Return a function that opens the test's own blob store; each call opens the same one, as another process would."""
    opened: list[BlobStore] = []
    prefix = f"{uuid4().hex}/"

    def open_one() -> BlobStore:
        if request.param == "folder":
            opened.append(FolderBlobStore(tmp_path / "blobs"))
        else:
            opened.append(s3_blobs(request.getfixturevalue("s3_url"), prefix))
        return opened[-1]

    yield open_one
    for blobs in opened:
        await blobs.close()


def s3_blobs(url: str, prefix: str = "warren/", **settings: Any) -> S3BlobStore:
    return S3BlobStore(
        "blobs",
        prefix=prefix,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="id",
        aws_secret_access_key="secret",
        **settings,
    )


@pytest.fixture
def blobs(open_blobs: OpenBlobs) -> BlobStore:
    return open_blobs()


def claim_check(blobs: BlobStore, **settings: Any) -> ClaimCheck:
    return ClaimCheck(blobs, **{"threshold_bytes": 1000, "clean_every": None, **settings})


class LetterService:
    """An App with claim checks that handles letters and records their texts."""

    def __init__(self, new_app: NewApp, name: str, *components: Any) -> None:
        class Letter(Command, queue=f"{name}.letters", type="letter"):
            text: str

        self.letter = Letter
        self.queue = f"{name}.letters"
        self.app = new_app()
        self.texts: list[str] = []
        for component in components:
            self.app.include(component)

        @self.app.handle(Letter)
        async def handle(letter: Letter) -> None:
            self.texts.append(letter.text)

    async def wait_for_letters(self, *texts: str) -> None:
        await eventually(lambda: self.texts == list(texts), "the letters are handled")


async def test_a_large_body_is_stored_outside_the_broker(
    new_app: NewApp, name: str, open_blobs: OpenBlobs
) -> None:
    sender, service = new_app(), LetterService(new_app, name, claim_check(open_blobs()))
    sending = claim_check(open_blobs())
    sender.include(sending)
    async with service.app, sender:
        await sender.publish(service.letter(text="small"))
        await service.wait_for_letters("small")
        assert sending.statistics.checked == 0
        await sender.publish(service.letter(text=LARGE))
        await service.wait_for_letters("small", LARGE)
        assert sending.statistics.checked == 1
        await sender.publish(service.letter(text=LARGE), exchange="", key=f"{service.queue}.dead")
        message = await take_one(sender.url or "", f"{service.queue}.dead")
    assert len(message.body) < 200
    assert (message.content_type, message.content_encoding, message.type) == (
        "application/json",
        "claim-check",
        "letter",
    )


async def test_stored_bodies_are_encrypted_if_the_app_encrypts(
    new_app: NewApp, name: str, tmp_path: Path
) -> None:
    check = claim_check(FolderBlobStore(tmp_path / "b"))
    service = LetterService(new_app, name, Encryption({"k": b"k" * 32}, current="k"), check)
    async with service.app as app:
        await app.publish(service.letter(text=LARGE))
        await service.wait_for_letters(LARGE)
    (kept,) = (tmp_path / "b").glob("*/*")
    assert b"xxxx" not in kept.read_bytes()


async def test_a_message_with_a_missing_or_changed_body_is_dead_lettered(
    new_app: NewApp, name: str, tmp_path: Path
) -> None:
    check = claim_check(FolderBlobStore(tmp_path / "b"))
    service, sender = LetterService(new_app, name, check), new_app()
    sender.include(claim_check(FolderBlobStore(tmp_path / "b")))
    cases: list[tuple[Callable[[Path], object], str]] = [
        (lambda kept: kept.unlink(), "is missing: bodies are kept for 30 days"),
        (lambda kept: kept.write_bytes(b"y" + kept.read_bytes()[1:]), "was changed in the blob store"),
        (lambda kept: kept.write_bytes(b""), "was changed in the blob store"),
    ]
    for damage, reason in cases:
        async with sender:
            await sender.publish(service.letter(text=LARGE))
        (kept,) = (tmp_path / "b").glob("*/*")
        damage(kept)
        async with service.app as app:
            dead = await take_one(app.url or "", f"{service.queue}.dead")
        assert reason in str(dead.headers["warren-dead-error"])
    assert check.statistics.lost == 3


async def test_a_message_with_a_forged_claim_is_dead_lettered(
    new_app: NewApp, name: str, tmp_path: Path
) -> None:
    service = LetterService(new_app, name, claim_check(FolderBlobStore(tmp_path / "b"), max_bytes=30_000))
    forger = new_app()

    async def forge(outgoing: Any, call_next: Any) -> None:
        outgoing.set("content_encoding", "claim-check")
        await call_next(outgoing)

    forger.middleware(publish=forge)
    async with service.app, forger:
        for claim, reason in (
            ("../../../etc/passwd;10", "not in the form that Warren writes"),
            (f"{'a' * 64};-1", "not in the form that Warren writes"),
            (f"{'a' * 64};99999999", "more than ClaimCheck(max_bytes=30000)"),
            (f"{'a' * 64};10", "is missing"),
        ):
            await forger.publish(service.letter(text="x"), headers={"warren-claim": claim})
            dead = await take_one(forger.url or "", f"{service.queue}.dead")
            assert reason in str(dead.headers["warren-dead-error"])


async def test_bodies_can_be_stored_without_a_message_and_expire(open_blobs: OpenBlobs) -> None:
    check = claim_check(open_blobs(), keep=timedelta(days=1))
    claim = await check.put(b"body")
    assert claim == BlobClaim.model_validate_json(claim.model_dump_json()) == await check.put(b"body")
    other = claim_check(open_blobs())
    assert await other.get(claim) == b"body"
    assert await check.clean() == 0
    assert await open_blobs().clean(datetime.now(UTC) + timedelta(days=1)) == 1
    with pytest.raises(DeadLetter, match="is missing"):
        await check.get(claim)
    with pytest.raises(ConfigError, match="too large"):
        await claim_check(open_blobs(), threshold_bytes=1, max_bytes=2).put(b"body")


async def test_expired_bodies_in_a_folder_are_deleted_in_the_background(
    new_app: NewApp, name: str, tmp_path: Path
) -> None:
    check = claim_check(
        FolderBlobStore(tmp_path / "b"), clean_every=timedelta(milliseconds=20), keep=timedelta(days=1)
    )
    old = await check.put(b"old")
    young = await check.put(b"young")
    path = tmp_path / "b" / old.sha256[:2] / old.sha256
    yesterday = datetime.now(UTC).timestamp() - 100_000
    os.utime(path, (yesterday, yesterday))
    service = LetterService(new_app, name, check)
    async with service.app:
        await eventually(lambda: check.statistics.cleaned == 1, "the old one is gone")
    assert not path.exists()
    assert await check.get(young) == b"young"


async def test_a_body_that_is_stored_again_during_the_cleaning_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FolderBlobStore(tmp_path / "b")
    name = "ab" * 32
    await blobs.put(name, b"body")
    os.utime(tmp_path / "b" / name[:2] / name, (0, 0))
    bodies: list[bytes | None] = []
    stat = Path.stat

    def stat_with_interference(path: Path, **how: Any) -> os.stat_result:
        """Store and read the body again between the steps of the cleaning, as other processes may do."""
        found = stat(path, **how)
        if path.name.startswith(name) and len(bodies) < 2:
            bodies.append(None)
            if len(bodies) == 1:
                asyncio.run(blobs.put(name, b"body"))
            bodies[-1] = asyncio.run(blobs.get(name))
        return found

    monkeypatch.setattr(Path, "stat", stat_with_interference)
    assert await blobs.clean(datetime.now(UTC) - timedelta(days=1)) == 0
    monkeypatch.undo()
    assert bodies == [b"body", b"body"]
    assert await blobs.get(name) == b"body"
    (kept,) = (tmp_path / "b").glob("*/*")
    assert kept.name == name


async def test_an_unavailable_blob_store_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    broken = FolderBlobStore(tmp_path / "b")
    (tmp_path / "b").rmdir()
    with pytest.raises(BlobStoreUnavailable, match="the blob store"):
        await broken.put("ab" * 32, b"body")
    with pytest.raises(UsageError, match="cannot be created"):
        FolderBlobStore(tmp_path / "missing" / "b")
    unreachable = s3_blobs("http://127.0.0.1:9", config=AioConfig(retries={"total_max_attempts": 1}))
    with pytest.raises(BlobStoreUnavailable, match="the blob store in bucket 'blobs'"):
        await unreachable.get("ab" * 32)
    await unreachable.close()
    with pytest.raises(ConfigError, match="threshold_bytes is 5"):
        ClaimCheck(broken, threshold_bytes=5, max_bytes=4)
    with pytest.raises(ConfigError, match="must be positive"):
        ClaimCheck(broken, keep=timedelta(0))
