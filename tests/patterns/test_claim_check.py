"""Large bodies beside the broker: in a folder, and over HTTP in an object store that speaks S3's protocol."""

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

Open = Callable[[], BlobStore]


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["folder", "s3"])
async def open_blobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
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
def blobs(open_blobs: Open) -> BlobStore:
    return open_blobs()


def claim_check(blobs: BlobStore, **settings: Any) -> ClaimCheck:
    return ClaimCheck(blobs, **{"threshold_bytes": 1000, "clean_every": None, **settings})


class Post:
    """An App that sends and takes letters, with claim checks."""

    def __init__(self, new_app: NewApp, name: str, *components: Any) -> None:
        class Letter(Command, queue=f"{name}.letters", type="letter"):
            text: str

        self.letter = Letter
        self.queue = f"{name}.letters"
        self.app = new_app()
        self.taken: list[str] = []
        for component in components:
            self.app.include(component)

        @self.app.handle(Letter)
        async def take(letter: Letter) -> None:
            self.taken.append(letter.text)

    async def has_taken(self, *texts: str) -> None:
        await eventually(lambda: self.taken == list(texts), "it is taken")


async def test_what_is_large_travels_beside_the_broker(new_app: NewApp, name: str, open_blobs: Open) -> None:
    sender, post = new_app(), Post(new_app, name, claim_check(open_blobs()))
    sending = claim_check(open_blobs())
    sender.include(sending)
    async with post.app, sender:
        await sender.publish(post.letter(text="small"))
        await post.has_taken("small")
        assert sending.statistics.checked == 0
        await sender.publish(post.letter(text=LARGE))
        await post.has_taken("small", LARGE)
        assert sending.statistics.checked == 1
        await sender.publish(post.letter(text=LARGE), exchange="", key=f"{post.queue}.dead")
        message = await take_one(sender.url or "", f"{post.queue}.dead")
    assert len(message.body) < 200
    assert (message.content_type, message.content_encoding, message.type) == (
        "application/json",
        "claim-check",
        "letter",
    )


async def test_what_it_keeps_is_encrypted_if_the_app_encrypts(
    new_app: NewApp, name: str, tmp_path: Path
) -> None:
    check = claim_check(FolderBlobStore(tmp_path / "b"))
    post = Post(new_app, name, Encryption({"k": b"k" * 32}, current="k"), check)
    async with post.app as app:
        await app.publish(post.letter(text=LARGE))
        await post.has_taken(LARGE)
    (kept,) = (tmp_path / "b").glob("*/*")
    assert b"xxxx" not in kept.read_bytes()


async def test_a_body_that_is_gone_or_changed_is_a_dead_letter(
    new_app: NewApp, name: str, tmp_path: Path
) -> None:
    check = claim_check(FolderBlobStore(tmp_path / "b"))
    post, sender = Post(new_app, name, check), new_app()
    sender.include(claim_check(FolderBlobStore(tmp_path / "b")))
    cases: list[tuple[Callable[[Path], object], str]] = [
        (lambda kept: kept.unlink(), "is missing: bodies are kept for 30 days"),
        (lambda kept: kept.write_bytes(b"y" + kept.read_bytes()[1:]), "was changed in the blob store"),
        (lambda kept: kept.write_bytes(b""), "was changed in the blob store"),
    ]
    for harm, reason in cases:
        async with sender:
            await sender.publish(post.letter(text=LARGE))
        (kept,) = (tmp_path / "b").glob("*/*")
        harm(kept)
        async with post.app as app:
            dead = await take_one(app.url or "", f"{post.queue}.dead")
        assert reason in str(dead.headers["warren-dead-error"])
    assert check.statistics.lost == 3


async def test_a_claim_names_nothing_but_a_digest(new_app: NewApp, name: str, tmp_path: Path) -> None:
    post = Post(new_app, name, claim_check(FolderBlobStore(tmp_path / "b"), max_bytes=30_000))
    forger = new_app()

    async def forge(outgoing: Any, call_next: Any) -> None:
        outgoing.set("content_encoding", "claim-check")
        await call_next(outgoing)

    forger.middleware(publish=forge)
    async with post.app, forger:
        for claim, reason in (
            ("../../../etc/passwd;10", "not in the form that Warren writes"),
            (f"{'a' * 64};-1", "not in the form that Warren writes"),
            (f"{'a' * 64};99999999", "more than ClaimCheck(max_bytes=30000)"),
            (f"{'a' * 64};10", "is missing"),
        ):
            await forger.publish(post.letter(text="x"), headers={"warren-claim": claim})
            dead = await take_one(forger.url or "", f"{post.queue}.dead")
            assert reason in str(dead.headers["warren-dead-error"])


async def test_claims_by_hand_and_what_is_too_old(open_blobs: Open) -> None:
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


async def test_a_folder_is_cleaned_in_the_background(new_app: NewApp, name: str, tmp_path: Path) -> None:
    check = claim_check(
        FolderBlobStore(tmp_path / "b"), clean_every=timedelta(milliseconds=20), keep=timedelta(days=1)
    )
    old = await check.put(b"old")
    young = await check.put(b"young")
    path = tmp_path / "b" / old.sha256[:2] / old.sha256
    yesterday = datetime.now(UTC).timestamp() - 100_000
    os.utime(path, (yesterday, yesterday))
    post = Post(new_app, name, check)
    async with post.app:
        await eventually(lambda: check.statistics.cleaned == 1, "the old one is gone")
    assert not path.exists()
    assert await check.get(young) == b"young"


async def test_what_is_put_again_while_the_old_one_is_cleaned_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FolderBlobStore(tmp_path / "b")
    name = "ab" * 32
    await blobs.put(name, b"body")
    os.utime(tmp_path / "b" / name[:2] / name, (0, 0))
    looks: list[bytes | None] = []
    stat = Path.stat

    def looked_at(path: Path, **how: Any) -> os.stat_result:
        """Others come between what the cleaning does: one puts the body again, and one gets it."""
        found = stat(path, **how)
        if path.name.startswith(name) and len(looks) < 2:
            looks.append(None)
            if len(looks) == 1:
                asyncio.run(blobs.put(name, b"body"))
            looks[-1] = asyncio.run(blobs.get(name))
        return found

    monkeypatch.setattr(Path, "stat", looked_at)
    assert await blobs.clean(datetime.now(UTC) - timedelta(days=1)) == 0
    monkeypatch.undo()
    assert looks == [b"body", b"body"]
    assert await blobs.get(name) == b"body"
    (kept,) = (tmp_path / "b").glob("*/*")
    assert kept.name == name


async def test_a_place_that_does_not_answer_is_said(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    broken = FolderBlobStore(tmp_path / "b")
    (tmp_path / "b").rmdir()
    with pytest.raises(BlobStoreUnavailable, match="the blob store"):
        await broken.put("ab" * 32, b"body")
    with pytest.raises(UsageError, match="cannot be created"):
        FolderBlobStore(tmp_path / "missing" / "b")
    nobody = s3_blobs("http://127.0.0.1:9", config=AioConfig(retries={"total_max_attempts": 1}))
    with pytest.raises(BlobStoreUnavailable, match="the blob store in bucket 'blobs'"):
        await nobody.get("ab" * 32)
    await nobody.close()
    with pytest.raises(ConfigError, match="threshold_bytes is 5"):
        ClaimCheck(broken, threshold_bytes=5, max_bytes=4)
    with pytest.raises(ConfigError, match="must be positive"):
        ClaimCheck(broken, keep=timedelta(0))
