"""A connection that is lost at each step of handling a message, for each kind of handler: one effect, one dead letter, one
reply, and nothing that stays held.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from enum import Enum
from functools import partial

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.cut import Cut
from tests.support.polling import eventually
from tests.support.proxy import Proxy, Watch
from warren.sdk import App, Delivery, Queue, RemoteError, Request, Retry
from warren.sdk.clock import SystemClock
from warren.sdk.consume.subscription import Subscription
from warren.sdk.protocols import Timer


class Numbered(Request[int], queue="numbered"):
    number: int


class Kind(Enum):
    SINGLE = "single"
    BATCH = "batch"
    KEYED = "keyed"
    STREAM = "stream"
    REQUEST = "request"


class Step(Enum):
    PREFETCHED = "the message waits for another one to be handled"
    BEGUN = "the handler is about to be called"
    RUNNING = "the handler runs in its last attempt"
    HANDLED = "the handler has ended"
    FIRST_ATTEMPT = "the handler runs in an attempt that fails"
    PAUSE = "the next attempt is waited for"
    SECOND_ATTEMPT = "the handler runs in its second attempt"


class Loss(Enum):
    NOTICED = "the step goes on while there is no connection"
    OVER = "the step goes on when the broker has delivered the messages again"


WITHIN = 3600.0
"""Seconds after which an incomplete batch is handled."""
TWO_ATTEMPTS = frozenset({Step.FIRST_ATTEMPT, Step.PAUSE, Step.SECOND_ATTEMPT})
"""Steps for which the first attempt fails."""


class SceneClock(SystemClock):
    """The clock of the machine, for a scene: a batch becomes due only after the connections were lost."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def sleep(self, seconds: float) -> None:
        await self._scene.reach(Step.PAUSE)
        await super().sleep(seconds)

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        is_due = self._scene.is_cut and when - self.now() > WITHIN - 60
        return super().call_at(self.now() + 0.05 if is_due else when, callback)


class Scene:
    """An App with a handler of one kind for the messages 0, 1 and 2, which loses its connections at one step.

    :ivar effects: numbers of the messages that were handled with success.
    """

    def __init__(
        self, app: App, proxy: Proxy, kind: Kind, step: Step | None, loss: Loss, *, fails: bool
    ) -> None:
        app.middleware(handle=self.around)
        app.clock.follow(SceneClock(self))
        self.app, self.kind, self.step, self.loss, self.fails = app, kind, step, loss, fails
        self.effects: list[int] = []
        self.is_cut = False
        self._cut = Cut(app, proxy)
        self.attempts: Counter[int] = Counter()
        self._restoring: asyncio.Task[None] | None = None
        self._reaching = asyncio.Lock()

    @property
    def subscription(self) -> Subscription:
        (only,) = self.app.subscriptions.values()
        assert isinstance(only, Subscription)
        return only

    async def reach(self, step: Step) -> None:
        """Lose the connections, if this is the step at which they are lost, and it is reached for the first time."""
        if step is not self.step:
            return
        async with self._reaching:
            # Another message that reaches the step meanwhile must not be settled before the loss is noticed.
            if not self.is_cut and (step is not Step.PAUSE or self.attempts):
                self.is_cut = True
                await self._lose()

    async def _lose(self) -> None:
        await self._cut.lose()
        if self.loss is Loss.NOTICED:
            self._restoring = asyncio.create_task(self._restore())
            return
        await self._cut.restore()
        if self.kind is not Kind.STREAM:
            statistics = self.subscription.statistics
            await eventually(lambda: statistics.redelivered >= 1, "the messages come again")

    async def _restore(self) -> None:
        """Restore the connection after the step, if that needs none."""
        for _ in range(50):
            await asyncio.sleep(0)
        await self._cut.restore()

    async def work(self, *numbers: int) -> None:
        """Handle messages, as each handler does."""
        is_first = 0 in numbers
        if is_first and self.step is Step.PREFETCHED:
            statistics = self.subscription.statistics
            await eventually(lambda: statistics.delivered >= 2, "the other message waits")
            await self.reach(Step.PREFETCHED)
        self.attempts[numbers[0]] += 1
        attempt = self.attempts[numbers[0]]
        await self.reach(Step.RUNNING)
        if is_first:
            await self.reach(Step.FIRST_ATTEMPT if attempt == 1 else Step.SECOND_ATTEMPT)
        if self.fails or (attempt == 1 and self.step in TWO_ATTEMPTS):
            raise ValueError("not today")
        self.effects += numbers

    async def finish(self, publish: Callable[[int], Awaitable[None]], amqp_client: AsyncClient) -> None:
        """Publish a last message, 2, when the others have come again, and wait until all are handled, or have failed.

        The consumer of a lost connection disappears from its queue when its messages are back.
        """
        await eventually(lambda: self.is_cut and self.app.ready, "it is ready again")
        if self.kind is not Kind.STREAM:
            await amqp_client.has_consumers(self.subscription.queue.name, 1)
        await publish(2)
        await eventually(lambda: self._ended() >= 3, "the messages are handled")

    def _ended(self) -> int:
        (handler,) = self.app.statistics().handlers.values()
        return handler.handled + handler.dead_lettered + handler.error_replies

    async def around(self, delivery: Delivery, call_next: Callable[[Delivery], Awaitable[None]]) -> None:
        """Reach the steps before and after the handler, as a middleware."""
        await self.reach(Step.BEGUN)
        try:
            await call_next(delivery)
        finally:
            await self.reach(Step.HANDLED)

    def add_handler(self, name: str, request: type[Numbered], retry: Retry) -> None:
        """Add the handler of this kind."""
        handle = self.app.handle

        async def store(body: bytes) -> None:
            await self.work(int(body))

        match self.kind:
            case Kind.SINGLE:
                handle(bytes, queue=name, concurrency=1, retry=retry)(store)
            case Kind.BATCH:

                @handle.batch(bytes, queue=name, size=2, within=timedelta(seconds=WITHIN), retry=retry)
                async def store_batch(bodies: list[bytes]) -> None:
                    await self.work(*sorted(map(int, bodies)))

            case Kind.KEYED:
                handle(bytes, queue=name, ordered_by=len, concurrency=5, retry=retry)(store)
            case Kind.STREAM:
                stream = Queue(name, type="stream")
                handle(
                    bytes, stream=stream, reader="r", offset="first", resume=True, concurrency=1, retry=retry
                )(store)
            case Kind.REQUEST:

                @handle(request, concurrency=1, retry=retry)
                async def answer(asked: Numbered) -> int:
                    await self.work(asked.number)
                    return asked.number


async def send(
    client: App, kind: Kind, name: str, request: type[Numbered], answers: list[object], number: int
) -> None:
    """Publish a message, or send a request and collect its answer."""
    if kind is not Kind.REQUEST:
        await client.publish(str(number).encode(), key=name)
        return
    try:
        answers.append(await client.call(request(number=number), timeout=60))
    except RemoteError:
        answers.append("error")


@pytest.mark.sampled(7)
@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
@pytest.mark.parametrize("loss", Loss, ids=lambda loss: loss.name.lower())
@pytest.mark.parametrize("step", Step, ids=lambda step: step.name.lower())
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
async def test_connections_that_are_lost_at_a_step_repeat_nothing(
    make_app: MakeApp,
    proxy: Proxy,
    amqp_client: AsyncClient,
    name: str,
    kind: Kind,
    step: Step,
    loss: Loss,
    fails: bool,
) -> None:
    class Ask(Numbered, queue=name):
        pass

    app, client = make_app(proxy.url, first_retry=0.01), make_app()
    scene = Scene(app, proxy, kind, step, loss, fails=fails)
    scene.add_handler(name, Ask, Retry(2, first_wait="1ms", longest_wait="1ms"))
    answers: list[object] = []
    publish = partial(send, client, kind, name, Ask, answers)
    async with client:
        async with app:
            calls = [asyncio.create_task(publish(0))]
            if kind is Kind.BATCH and step is Step.PREFETCHED:
                gathering = app.statistics
                await eventually(lambda: gathering().handlers[name].gathering == 1, "a batch is incomplete")
                await scene.reach(Step.PREFETCHED)
            calls.append(asyncio.create_task(publish(1)))
            await asyncio.wait(calls)
            await scene.finish(publish, amqp_client)
        if kind is Kind.REQUEST:
            assert client.statistics().calls.discarded_replies == 0
            assert sorted(map(str, answers)) == (["error"] * 3 if fails else ["0", "1", "2"])
    await check_outcome(scene, make_app(), amqp_client, name)


async def check_outcome(scene: Scene, later: App, amqp_client: AsyncClient, name: str) -> None:
    """Check that each message had one effect or left one dead letter, and that none is left.

    :param later: App that reads the stream next.
    """
    assert sorted(scene.effects) == ([] if scene.fails else [0, 1, 2])
    letters = await amqp_client.drain(f"{name}.r.dead" if scene.kind is Kind.STREAM else f"{name}.dead")
    assert sorted(letters) == ([b"0", b"1", b"2"] if scene.fails and scene.kind is not Kind.REQUEST else [])
    if scene.kind is Kind.STREAM:
        await nothing_is_read_again(later, name)
    else:
        await amqp_client.holds(name, 0)


async def nothing_is_read_again(app: App, name: str) -> None:
    """Check that the stored position is behind the messages of the stream."""
    seen: list[bytes] = []

    @app.handle(bytes, stream=Queue(name, type="stream"), reader="r", offset="first", resume=True)
    async def read(body: bytes) -> None:
        seen.append(body)

    async with app:
        await app.publish(b"3", key=name)
        await eventually(lambda: bool(seen), "the stream is read")
    assert seen == [b"3"]


class Settled(Enum):
    """Messages that are published before a message is settled."""

    REPLY = "reply"
    ERROR_REPLY = "error reply"
    DELAYED = "delayed copy"
    DEAD_LETTER = "dead letter"


PUBLISH = bytes((0, 60, 0, 40))
"""Class and method of basic.publish."""
MARKS = {
    Settled.REPLY: PUBLISH,
    Settled.ERROR_REPLY: PUBLISH,
    Settled.DELAYED: b"warren-attempt",
    Settled.DEAD_LETTER: b"warren-dead-reason",
}
"""Bytes by which the first publish of each is recognised; an App that answers requests publishes nothing else."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("cuts_publisher", [False, True], ids=["consumer", "both"])
@pytest.mark.parametrize(
    ("kind", "settled"),
    [
        (Kind.REQUEST, Settled.REPLY),
        (Kind.REQUEST, Settled.ERROR_REPLY),
        *((kind, Settled.DELAYED) for kind in (Kind.SINGLE, Kind.BATCH, Kind.KEYED)),
        *((kind, Settled.DEAD_LETTER) for kind in (Kind.SINGLE, Kind.BATCH, Kind.KEYED, Kind.STREAM)),
    ],
    ids=lambda value: value.name.lower(),
)
async def test_connections_that_are_lost_while_a_settlement_is_published_repeat_nothing(
    make_app: MakeApp,
    proxy: Proxy,
    amqp_client: AsyncClient,
    name: str,
    kind: Kind,
    settled: Settled,
    cuts_publisher: bool,
) -> None:
    """The connection of the consumers is cut when the copy or the reply has passed, or both are cut right before it."""

    class Ask(Numbered, queue=name):
        pass

    def watch() -> Watch:
        def look(data: bytes) -> tuple[int, Callable[[], None]] | None:
            if scene.is_cut or MARKS[settled] not in data:
                return None
            scene.is_cut = True
            return (0, proxy.cut) if cuts_publisher else (len(data), partial(proxy.cut, b" consumer"))

        return look

    app, client = make_app(proxy.url, first_retry=0.01), make_app()
    fails = settled is not Settled.REPLY
    scene = Scene(app, proxy, kind, None, Loss.NOTICED, fails=fails)
    proxy.to_server.watch = watch
    retry = Retry(1).then("10ms") if settled is Settled.DELAYED else Retry(1)
    scene.add_handler(name, Ask, retry)
    answers: list[object] = []
    publish = partial(send, client, kind, name, Ask, answers)
    async with client:
        async with app:
            for number in range(2):
                await publish(number)
            await scene.finish(publish, amqp_client)
        if kind is Kind.REQUEST:
            assert client.statistics().calls.discarded_replies == 0
            assert answers == (["error"] * 3 if fails else [0, 1, 2])
    await check_outcome(scene, make_app(), amqp_client, name)
