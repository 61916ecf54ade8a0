"""The claim check in every fault, with a folder and workers that are killed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import (
    BROKER_KILLED_WHILE_WAITING,
    CRASH_AFTER_EFFECT,
    CRASH_BEFORE_EFFECT,
    DUPLICATE,
    LOST_ACKNOWLEDGEMENT,
    LOST_CONFIRM,
    Process,
    copy_handled,
    handled_again,
    handled_by_successor,
)
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.support.polling import eventually
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import BlobStoreUnavailable, ClaimCheck, FolderBlobStore
from warren.sdk import App, Command, Retry

MATRIX = Matrix("claim_check", page="docs/patterns/claim_check.md")

LARGE = "x" * 5000


class StoppingBlobs(FolderBlobStore):
    """A folder at which a worker stands still, or which is down for a while."""

    worker: WorkerChannel | None = None
    down = False

    async def put(self, name: str, body: bytes) -> None:
        if self.down:
            raise BlobStoreUnavailable("down, as the test says")
        await super().put(name, body)
        if self.worker is not None:
            await self.worker.report_and_wait("put")

    async def get(self, name: str) -> bytes | None:
        if self.down:
            raise BlobStoreUnavailable("down, as the test says")
        return await super().get(name)


class Post(Process):
    """A process that publishes and handles letters whose body is stored."""

    servers = ("tmp_path",)

    def __init__(
        self,
        app: App,
        name: str,
        tmp_path: str,
        *,
        handles: bool = True,
        keep: timedelta = timedelta(days=30),
    ) -> None:
        class Letter(Command, queue=f"{name}.letters", type="letter"):
            number: int
            text: str = LARGE

        super().__init__(app, name)
        self.letter = Letter
        self.queue = f"{name}.letters"
        self.folder = Path(tmp_path) / "bodies"
        self.blobs = StoppingBlobs(self.folder)
        self.check = ClaimCheck(self.blobs, threshold_bytes=1000, keep=keep, clean_every=None)
        app.include(self.check)
        if handles:

            @app.handle(Letter, retry=Retry(50))
            async def take(letter: Letter) -> None:
                assert letter.text == LARGE
                await self.handle(letter.number)

    async def publish(self, number: int) -> None:
        await self.app.publish(self.letter(number=number), message_id=f"m{number}")

    @property
    def bodies(self) -> int:
        """Bodies in the folder."""
        return len(list(self.folder.glob("*/*")))


async def body_is_fetched_again(post: Post) -> None:
    await post.has_handled(1)
    assert post.check.statistics.claimed == 1


async def both_fetch_the_same_body(post: Post) -> None:
    await handled_again(post)
    assert post.check.statistics.claimed == 2
    assert post.bodies == 1


async def copy_has_the_same_claim(post: Post) -> None:
    await copy_handled(post)
    assert post.bodies == 2


async def publisher(worker: WorkerChannel, url: str, name: str, folder: str) -> None:
    """Publish in a worker that stops between storing a body and publishing its message."""
    post = Post(App(url), name, folder)
    post.blobs.worker = worker
    async with post.app:
        await post.publish(1)
        worker.report("published")


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "a publisher, between body and message: the body stays without a message until it expires",
)
async def test_a_publisher_dies_between_body_and_message(
    amqp_url: str, workers: Workers, new_app: NewApp, tmp_path: Path, name: str
) -> None:
    doomed = await workers.start(publisher, url=amqp_url, name=name, folder=str(tmp_path))
    await workers.wait_for("put")
    doomed.kill()
    post = Post(new_app(), name, str(tmp_path), keep=timedelta(microseconds=1))
    assert post.bodies == 1
    assert await post.check.clean() == 1


CRASH_BEFORE_EFFECT.of(
    MATRIX, Post, "a handler: the message is redelivered and fetches its body again", body_is_fetched_again
)
CRASH_AFTER_EFFECT.of(
    MATRIX,
    Post,
    "the message is redelivered and fetches its body again: bodies are not deleted on use",
    body_is_fetched_again,
)
LOST_ACKNOWLEDGEMENT.of(MATRIX, Post, "the message is redelivered and fetches its body again", handled_again)
LOST_CONFIRM.of(MATRIX, Post, "the message is published again with the same claim", copy_has_the_same_claim)
BROKER_KILLED_WHILE_WAITING.of(
    MATRIX,
    Post,
    "no effect: the body is in the blob store, and the message is as durable as any other",
    handled_by_successor,
)


DUPLICATE.of(MATRIX, Post, "each copy fetches the same body", both_fetch_the_same_body)
MATRIX.spared(
    Fault.REORDERING,
    "no effect: each message has its own claim",
)


@MATRIX.shows(
    Fault.STORE_DOWN,
    "publishing raises `BlobStoreUnavailable`, nothing is published; the handler fails, and its retry policy decides",
)
async def test_the_blob_store_is_down(new_app: NewApp, tmp_path: Path, name: str) -> None:
    post = Post(new_app(), name, str(tmp_path))
    publisher = Post(new_app(), name, str(tmp_path), handles=False)
    async with post.app as app, publisher.app:
        post.blobs.down = True
        with pytest.raises(BlobStoreUnavailable):
            await post.publish(0)
        await publisher.publish(1)
        statistics = app.statistics().handlers[post.queue]
        await eventually(
            lambda: app.statistics().handlers[post.queue].failed_attempts > 1, "it is tried again"
        )
        assert statistics.handled == 0
        post.blobs.down = False
        await post.has_handled(1)


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect except on the age at which bodies are deleted: a process whose clock is ahead by `keep` "
    "deletes bodies that are needed",
)
async def test_a_process_that_deletes_bodies_is_a_day_ahead(
    amqp_url: str, new_app: NewApp, tmp_path: Path, name: str
) -> None:
    post = Post(new_app(), name, str(tmp_path), keep=timedelta(days=7))
    ahead = App(amqp_url, clock=SkewedClock(86_400))
    cleaning = ClaimCheck(FolderBlobStore(post.folder), keep=timedelta(days=7))
    hasty = ClaimCheck(FolderBlobStore(post.folder), keep=timedelta(hours=1))
    for check in (cleaning, hasty):
        ahead.include(check)
    await post.check.put(b"x")
    assert (await cleaning.clean(), await hasty.clean()) == (0, 1)
