"""The claim check in every fault, with a folder and workers that are killed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
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


class Post:
    """An App that sends and takes large letters."""

    def __init__(self, app: App, name: str, folder: Path, keep: timedelta = timedelta(days=30)) -> None:
        class Letter(Command, queue=f"{name}.letters", type="letter"):
            number: int
            text: str = LARGE

        self.letter = Letter
        self.queue = f"{name}.letters"
        self.app = app
        self.blobs = StoppingBlobs(folder)
        self.check = ClaimCheck(self.blobs, threshold_bytes=1000, keep=keep, clean_every=None)
        app.include(self.check)
        self.taken: list[int] = []

        @app.handle(Letter, retry=Retry(50))
        async def take(letter: Letter) -> None:
            assert letter.text == LARGE
            await self.before()
            self.taken.append(letter.number)
            await self.after()

    async def before(self) -> None:
        """Run before the effect; tests override this."""

    async def after(self) -> None:
        """Run after the effect; tests override this."""

    async def has_taken(self, *numbers: int) -> None:
        await eventually(lambda: self.taken == list(numbers), f"{numbers} are taken, not {self.taken}")


async def sender(worker: WorkerChannel, url: str, name: str, folder: str) -> None:
    """Publish in a worker that stops between storing a body and publishing its message."""
    post = Post(App(url), name, Path(folder))
    post.blobs.worker = worker
    async with post.app as app:
        await app.publish(post.letter(number=1))
        worker.report("published")


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "a publisher, between body and message: the body stays without a message until it expires",
)
async def test_a_publisher_dies_between_body_and_message(
    amqp_url: str, workers: Workers, new_app: NewApp, tmp_path: Path, name: str
) -> None:
    doomed = await workers.start(sender, url=amqp_url, name=name, folder=str(tmp_path / "b"))
    await workers.wait_for("put")
    doomed.kill()
    check = ClaimCheck(FolderBlobStore(tmp_path / "b"), keep=timedelta(microseconds=1))
    assert len(list((tmp_path / "b").glob("*/*"))) == 1
    assert await check.clean() == 1


async def taker(worker: WorkerChannel, url: str, name: str, folder: str, stop: str) -> None:
    """Handle letters in a worker that stops before or after the effect."""
    post = Post(App(url), name, Path(folder))

    async def stand_still() -> None:
        await worker.report_and_wait("stands still")

    setattr(post, stop, stand_still)
    async with post.app:
        await worker.report_and_wait("ready")


async def succeeded(url: str, folder: Path, workers: Workers, new_app: NewApp, name: str, stop: str) -> None:
    """Kill a worker that has fetched a body; check that the next one fetches it again."""
    doomed = await workers.start(taker, url=url, name=name, folder=str(folder), stop=stop)
    await workers.wait_for("ready")
    post = Post(new_app(), name, folder)
    sending = new_app()
    sending.include(ClaimCheck(FolderBlobStore(folder), threshold_bytes=1000, clean_every=None))
    async with sending:
        await sending.publish(post.letter(number=1))
    await workers.wait_for("stands still")
    doomed.kill()
    async with post.app:
        await post.has_taken(1)
    assert post.check.statistics.claimed == 1


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "a handler: the message is redelivered and fetches its body again",
)
async def test_a_handler_dies_before_its_effect(
    amqp_url: str, workers: Workers, new_app: NewApp, tmp_path: Path, name: str
) -> None:
    await succeeded(amqp_url, tmp_path / "b", workers, new_app, name, "before")


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the message is redelivered and fetches its body again: bodies are not deleted on use",
)
async def test_a_handler_dies_after_its_effect(
    amqp_url: str, workers: Workers, new_app: NewApp, tmp_path: Path, name: str
) -> None:
    await succeeded(amqp_url, tmp_path / "b", workers, new_app, name, "after")


@MATRIX.shows(
    Fault.DUPLICATE,
    "each copy fetches the same body",
)
async def test_a_letter_comes_twice(new_app: NewApp, tmp_path: Path, name: str) -> None:
    post = Post(new_app(), name, tmp_path / "b")
    async with post.app as app:
        for _ in range(2):
            await app.publish(post.letter(number=1), message_id="the same")
        await post.has_taken(1, 1)
    assert post.check.statistics.claimed == 2
    assert len(list((tmp_path / "b").glob("*/*"))) == 1


MATRIX.spared(
    Fault.REORDERING,
    "no effect: each message has its own claim",
)


@MATRIX.shows(
    Fault.LOST_ACK,
    "the message is redelivered and fetches its body again",
)
async def test_the_acknowledgement_is_lost(amqp_url: str, new_app: NewApp, tmp_path: Path, name: str) -> None:
    async with Proxy(amqp_url) as proxy:
        post = Post(new_app(proxy.url), name, tmp_path / "b")

        async def deafen() -> None:
            if len(post.taken) == 1:
                proxy.to_server.hold()

        post.after = deafen  # type: ignore[method-assign]
        async with post.app as app:
            await app.publish(post.letter(number=1))
            await post.has_taken(1)
            proxy.cut()
            proxy.to_server.release()
            await post.has_taken(1, 1)


@MATRIX.shows(Fault.LOST_CONFIRM, "the message is published again with the same claim")
async def test_the_confirm_is_lost(amqp_url: str, new_app: NewApp, tmp_path: Path, name: str) -> None:
    post = Post(new_app(), name, tmp_path / "b")
    async with post.app, Proxy(amqp_url) as proxy:
        sending = new_app(proxy.url)
        sending.include(ClaimCheck(FolderBlobStore(tmp_path / "b"), threshold_bytes=1000, clean_every=None))
        async with sending:
            await sending.publish(post.letter(number=1))
            proxy.to_client.hold()
            publishing = asyncio.ensure_future(sending.publish(post.letter(number=2)))
            await eventually(lambda: 2 in post.taken, "the broker has it")
            proxy.cut()
            proxy.to_client.release()
            await publishing
            await eventually(lambda: post.taken.count(2) > 1, "it comes twice")
    assert len(list((tmp_path / "b").glob("*/*"))) == 2


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "no effect: the body is in the blob store, and the message is as durable as any other",
)
async def test_the_broker_is_killed_while_a_message_waits(
    mortal_broker: BrokerProcess, tmp_path: Path, name: str
) -> None:
    post = Post(App(mortal_broker.url), name, tmp_path / "b")
    sending = App(mortal_broker.url)
    sending.include(ClaimCheck(FolderBlobStore(tmp_path / "b"), threshold_bytes=1000, clean_every=None))
    async with sending:
        await sending.publish(post.letter(number=1))
    await asyncio.to_thread(mortal_broker.kill)
    await asyncio.to_thread(mortal_broker.start)
    async with post.app:
        await post.has_taken(1)


@MATRIX.shows(
    Fault.STORE_DOWN,
    "publishing raises `BlobStoreUnavailable`, nothing is published; the handler fails, and its retry policy decides",
)
async def test_the_place_for_bodies_is_down(new_app: NewApp, tmp_path: Path, name: str) -> None:
    post = Post(new_app(), name, tmp_path / "b")
    sending = new_app()
    sending.include(ClaimCheck(FolderBlobStore(tmp_path / "b"), threshold_bytes=1000, clean_every=None))
    async with post.app as app, sending:
        post.blobs.down = True
        with pytest.raises(BlobStoreUnavailable):
            await app.publish(post.letter(number=0))
        await sending.publish(post.letter(number=1))
        statistics = app.statistics().handlers[post.queue]
        await eventually(
            lambda: app.statistics().handlers[post.queue].failed_attempts > 1, "it is tried again"
        )
        assert statistics.handled == 0
        post.blobs.down = False
        await post.has_taken(1)


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect except on the age at which bodies are deleted: a process whose clock is ahead by `keep` "
    "deletes bodies that are needed",
)
async def test_who_cleans_is_a_day_ahead(amqp_url: str, new_app: NewApp, tmp_path: Path, name: str) -> None:
    post = Post(new_app(), name, tmp_path / "b", keep=timedelta(days=7))
    ahead = App(amqp_url, clock=SkewedClock(86_400))
    cleaning = ClaimCheck(FolderBlobStore(tmp_path / "b"), keep=timedelta(days=7))
    hasty = ClaimCheck(FolderBlobStore(tmp_path / "b"), keep=timedelta(hours=1))
    for check in (cleaning, hasty):
        ahead.include(check)
    await post.check.put(b"x")
    assert (await cleaning.clean(), await hasty.clean()) == (0, 1)
