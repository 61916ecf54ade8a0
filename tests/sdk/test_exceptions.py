"""Exceptions of every kind in handlers of every kind: the report of a failure never decides about the message."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Any, NoReturn

import pytest

from tests.sdk.exception_table import ENDING, PAGE, Kind, Outcome, Source, outcome, page_with_table
from tests.support.async_client import async_client
from tests.support.broker_behaviour import Behaviour
from tests.support.polling import eventually
from warren.sdk import App, Depends, Queue, RemoteError, Request, Retry, current_delivery

BODY, NEXT = b"1", b"2"
PATIENCE = 60.0


class WithoutText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


class Fatal(BaseException):
    pass


NAMES = {
    Kind.EXCEPTION: "ValueError",
    Kind.WITHOUT_TEXT: "WithoutText",
    Kind.UNPICKLABLE: "Unpicklable",
    Kind.FOREIGN_CANCELLATION: "CancelledError",
    Kind.OWN_CANCELLATION: "CancelledError",
    Kind.GENERATOR_EXIT: "GeneratorExit",
    Kind.BASE_EXCEPTION: "Fatal",
}
"""Names of the exceptions, as dead letters and error replies have them."""


class Failure:
    """A handler that fails in one way for the first message, each time it gets it."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.runs = 0
        self.next_handled = threading.Event()
        self.released = threading.Event()
        """Ends handlers that wait in a thread."""

    async def __call__(self) -> None:
        self.runs += 1
        match self.kind:
            case Kind.FOREIGN_CANCELLATION:
                await _await_cancelled_task()
            case Kind.OWN_CANCELLATION:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.Event().wait()
            case Kind.STOP:
                await asyncio.Event().wait()
        self._raise()

    def in_thread(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        self.runs += 1
        match self.kind:
            case Kind.FOREIGN_CANCELLATION:
                asyncio.run(_await_cancelled_task())
            case Kind.OWN_CANCELLATION:
                loop.call_soon_threadsafe(task.cancel)
                self.released.wait()
            case Kind.STOP:
                self.released.wait()
            case _:
                self._raise()

    def _raise(self) -> NoReturn:
        match self.kind:
            case Kind.EXCEPTION:
                raise ValueError("it failed")
            case Kind.WITHOUT_TEXT:
                raise WithoutText
            case Kind.UNPICKLABLE:
                raise Unpicklable
            case Kind.GENERATOR_EXIT:
                raise GeneratorExit
            case Kind.SYSTEM_EXIT:
                sys.exit(3)
            case Kind.KEYBOARD_INTERRUPT:
                raise KeyboardInterrupt
            case _:
                raise Fatal("it is no Exception")


async def _await_cancelled_task() -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


async def _task() -> tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]:
    task = asyncio.current_task()
    assert task is not None
    return asyncio.get_running_loop(), task


class Handlers:
    """Apps with one handler of a kind, which has `failure`, and the messages that they handle."""

    def __init__(self, url: str, name: str, source: Source, failure: Failure) -> None:
        self._url = url
        self._name = name
        self._source = source
        self._failure = failure
        self.handled: list[bytes] = []
        """Messages that the handler of `working` has handled."""
        self.failures = 0
        """Failed deliveries of the last of them, by the count of a quorum queue."""

        class Ask(Request[int], queue=name):
            body: bytes

        self.Ask = Ask

    @property
    def messages(self) -> int:
        return 2 if self._source is Source.BATCH else 1

    @property
    def dead_letter_queue(self) -> str:
        return f"{self._name}.reader.dead" if self._source is Source.STREAM else f"{self._name}.dead"

    def failing(self) -> App:
        failure = self._failure

        async def take(body: bytes) -> None:
            if body == NEXT:
                failure.next_handled.set()
            else:
                await failure()

        def take_in_thread(body: bytes, within: Annotated[Any, Depends(_task)]) -> None:
            if body == NEXT:
                failure.next_handled.set()
            else:
                failure.in_thread(*within)

        return self._app(take, take_in_thread)

    def working(self) -> App:
        async def take(body: bytes) -> None:
            self.handled += [body] * self.messages
            current = current_delivery()
            self.failures = 0 if current is None else int(current.headers.get("x-delivery-count", 0))

        def take_in_thread(body: bytes) -> None:
            self.handled.append(body)

        return self._app(take, take_in_thread)

    def _app(self, take: Callable[[bytes], Awaitable[None]], take_in_thread: Callable[..., None]) -> App:
        app = App(self._url, grace=0, retry=Retry(2, first_wait="1ms"))
        match self._source:
            case Source.CLASSIC:
                app.handle(bytes, queue=Queue(self._name, type="classic"))(take)
            case Source.QUORUM:
                app.handle(bytes, queue=self._name)(take)
            case Source.STREAM:
                app.handle(bytes, stream=Queue(self._name, type="stream"), reader="reader", offset="first")(
                    take
                )
            case Source.BATCH:

                @app.handle.batch(bytes, queue=self._name, size=2, within="1h")
                async def take_batch(bodies: list[bytes]) -> None:
                    assert bodies == bodies[:1] * 2
                    await take(bodies[0])

            case Source.REQUEST:

                @app.handle(self.Ask)
                async def ask(request: Any) -> int:
                    await take(request.body)
                    return 1

            case Source.THREAD:
                app.handle(bytes, queue=self._name)(take_in_thread)
        return app

    async def send(self, app: App, body: bytes = BODY) -> RemoteError | None:
        """Publish the message, or call with it; return the error of the call."""
        if self._source is Source.REQUEST:
            try:
                await app.call(self.Ask(body=body), timeout=PATIENCE)
            except RemoteError as error:
                return error
        else:
            await app.publish_many([body] * self.messages, key=self._name)
        return None

    async def fail(self) -> Outcome:
        """Have the failing handler handle the message and a further one; return the outcome."""
        kind, failure = self._failure.kind, self._failure
        async with self.failing() as app:
            error = await self.send(app)
            if self._source is Source.REQUEST:
                assert error is not None
                named, is_reply = error.code, True
            else:
                for _ in range(self.messages):
                    letter = await app.get(self.dead_letter_queue, timeout=PATIENCE)
                    assert letter is not None
                    assert letter.headers["warren-dead-reason"] == "failed"
                    named, is_reply = letter.headers["warren-dead-error"].partition(":")[0], False
                    await letter.ack()
            assert named == NAMES[kind]
            await self.send(app, NEXT)
            await eventually(failure.next_handled.is_set, "the next message is handled")
            statistics = app.statistics()
            failure.released.set()
        assert statistics.handlers[self._statistics_name].dropped == 0
        if failure.runs == 1:
            return Outcome.REPLY if is_reply else Outcome.LETTER
        assert failure.runs == 2
        return Outcome.RETRIED_REPLY if is_reply else Outcome.RETRIED_LETTER

    @property
    def _statistics_name(self) -> str:
        return f"{self._name}.reader" if self._source is Source.STREAM else self._name

    async def end_program(self) -> NoReturn:
        """Run until the exception of the handler ends the program."""
        async with self.failing() as app:
            await self.send(app)
            await asyncio.Event().wait()
        raise AssertionError

    async def stop(self) -> None:
        """Stop the App while the handler runs."""
        async with self.failing() as app:
            sending = asyncio.ensure_future(self.send(app))
            await eventually(lambda: self._failure.runs > 0, "the handler runs")
        with contextlib.suppress(Exception):
            await sending
        self._failure.released.set()

    async def handle_again(self) -> None:
        """Have a working handler handle the message; assert that nothing is dead-lettered."""
        async with self.working() as app:
            await eventually(lambda: len(self.handled) >= self.messages, "it is handled again")
            assert await app.get(self.dead_letter_queue, timeout=0) is None
        assert self.handled == [BODY] * self.messages

    async def clean_up(self) -> None:
        async with async_client(self._url) as client:
            for item in self.working().topology:
                if isinstance(item, Queue):
                    await client.channel.queue_delete(item.name)


CELLS = [(kind, source) for kind in Kind for source in Source]


@pytest.fixture(params=CELLS, ids=lambda cell: f"{cell[0].name}-{cell[1].name}".lower())
def cell(request: pytest.FixtureRequest) -> tuple[Kind, Source]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def handlers(amqp_url: str, name: str, cell: tuple[Kind, Source]) -> Iterator[Handlers]:
    kind, source = cell
    made = Handlers(amqp_url, name, source, Failure(kind))
    yield made
    asyncio.run(made.clean_up())


@pytest.mark.sampled(7)
def test_the_report_of_a_failure_does_not_decide_about_the_message(
    handlers: Handlers, cell: tuple[Kind, Source], amqp_url: str, name: str, server: Behaviour
) -> None:
    kind, source = cell
    is_counted = source in (Source.QUORUM, Source.REQUEST)
    if kind in ENDING:
        words = (sys.executable, "-m", __name__, amqp_url, name, kind.name, source.name)
        ended = subprocess.run(
            words, cwd=PAGE.parents[1], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        expected = 3 if kind is Kind.SYSTEM_EXIT else -signal.SIGINT
        assert ended.returncode == expected, ended.stderr
        asyncio.run(handlers.handle_again())
        if kind is Kind.SYSTEM_EXIT and is_counted:
            # Its connection may have ended with the message in its hands again, which counts too.
            assert handlers.failures >= 1
        found = Outcome.ENDS
    elif kind is Kind.STOP:
        asyncio.run(handlers.stop())
        asyncio.run(handlers.handle_again())
        assert handlers.failures == (1 if is_counted and not server.counts_returns_apart else 0)
        found = Outcome.AGAIN
    else:
        found = asyncio.run(handlers.fail())
    assert found == outcome(kind, source)


def test_the_kinds_are_what_they_are_called() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(Unpicklable())
    for text in (str, repr):
        with pytest.raises(RuntimeError):
            text(WithoutText())


def test_the_page_has_the_table() -> None:
    assert PAGE.read_text() == page_with_table(), "run: python -m tests.sdk.exception_table"


def main(url: str, name: str, kind: str, source: str) -> None:
    """Run the program whose handler ends it."""
    asyncio.run(Handlers(url, name, Source[source], Failure(Kind[kind])).end_program())


if __name__ == "__main__":
    main(*sys.argv[1:])
