"""Watchdog of the event loop: the log names the handler that blocks it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.polling import eventually, wait_until
from warren.sdk import App, Command, ConfigError
from warren.sdk.app.loop_watchdog import INNERMOST
from warren.testing import Warren

SECONDS = 60.0
WATCHDOG = "warren watchdog"


class Logged(logging.Handler):
    """Log handler that lets a blocked handler of a message go on as soon as it was reported."""

    def __init__(self) -> None:
        super().__init__()
        self.reported = threading.Event()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        if "handler.blocked_loop" in self.messages[-1]:
            self.reported.set()


@pytest.fixture
def logged() -> Iterator[Logged]:
    handler = Logged()
    logger = logging.getLogger("warren.sdk")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def watchdogs() -> set[threading.Thread]:
    """Return the watchdogs of all Apps in this process, those of other tests that are ending included."""
    return {thread for thread in threading.enumerate() if thread.name == WATCHDOG}


async def test_a_handler_that_blocks_the_loop_is_named_with_its_stack(
    make_app: MakeApp, name: str, logged: Logged
) -> None:
    class Work(Command, queue=name):
        pass

    app = make_app(stall_threshold=0.05)
    before = watchdogs()

    @app.handle(Work)
    async def block_the_loop(message: Work) -> None:
        assert logged.reported.wait(SECONDS)

    async with app:
        (own,) = watchdogs() - before
        await app.publish(Work())
        await eventually(
            lambda: any("handler.released_loop" in each for each in logged.messages), "the loop answers"
        )
    blocked = next(each for each in logged.messages if "handler.blocked_loop" in each)
    function = "test_a_handler_that_blocks_the_loop_is_named_with_its_stack.<locals>.block_the_loop"
    assert blocked.startswith(f"event=handler.blocked_loop handler={function} seconds=")
    # The stack begins in the user's code, and ends in the call that blocks.
    first, _, rest = blocked.partition("stack=")[2].partition("\n")
    assert f'File "{__file__}"' in first
    assert first.endswith("in block_the_loop")
    assert "assert logged.reported.wait(SECONDS)" in rest
    assert any(f"event=handler.released_loop handler={function}" in each for each in logged.messages)
    await eventually(lambda: not own.is_alive(), "the watchdog ends with the App")


def test_the_watchdog_ends_with_a_loop_that_ends_without_the_app(amqp_url: str, name: str) -> None:
    before = watchdogs()

    async def start() -> threading.Thread:
        app = App(amqp_url, stall_threshold=0.05)

        @app.handle(bytes, queue=name)
        async def work(body: bytes) -> None: ...

        await app.start()
        (own,) = watchdogs() - before
        return own

    own = asyncio.run(start())
    wait_until(lambda: not own.is_alive(), "the watchdog ends with the loop")


async def test_a_batch_handler_is_named_too(make_app: MakeApp, name: str, logged: Logged) -> None:
    class Row(Command, queue=name):
        pass

    app = make_app(stall_threshold=0.05)

    @app.handle.batch(Row, size=1)
    async def store_rows(rows: list[Row]) -> None:
        assert logged.reported.wait(SECONDS)

    async with app:
        await app.publish(Row())
        await eventually(lambda: app.statistics().handlers[name].handled == 1, "it is stored")
    assert any(
        "handler=test_a_batch_handler_is_named_too.<locals>.store_rows" in each for each in logged.messages
    )


async def test_a_plain_handler_blocks_nothing(make_app: MakeApp, name: str, logged: Logged) -> None:
    class Work(Command, queue=name):
        pass

    app, go_on = make_app(stall_threshold=0.05), threading.Event()

    @app.handle(Work)
    def work(message: Work) -> None:
        assert go_on.wait(SECONDS)

    async with app:
        await app.publish(Work())
        await eventually(lambda: app.statistics().subscriptions[name].running == 1, "it runs")
        for _ in range(20):  # Round trips, in which the watchdog would find a loop that does not answer.
            await app.declare_now(*app.topology)
        go_on.set()
    # A busy machine may hold the loop up, with no handler in its stack.
    assert not any("handler=test_a_plain_handler_blocks_nothing" in each for each in logged.messages)


async def test_there_is_no_watchdog_on_a_virtual_clock(warren: Warren) -> None:
    class Work(Command, queue="work"):
        pass

    app = App()
    before = watchdogs()

    @app.handle(Work)
    async def work(message: Work) -> None: ...

    async with warren.running(app):
        await warren.publish(Work())
        assert watchdogs() <= before


async def test_the_watchdog_can_be_turned_off(make_app: MakeApp, name: str) -> None:
    app = make_app(stall_threshold=None)
    before = watchdogs()

    @app.handle(bytes, queue=name)
    async def work(message: bytes) -> None: ...

    async with app:
        assert watchdogs() <= before
    with pytest.raises(
        ConfigError, match="stall_threshold must be above 0, not 0: None turns the watchdog off"
    ):
        App("amqp://localhost", stall_threshold=0)


async def test_a_loop_that_no_handler_blocks_is_reported_with_its_innermost_frames_only(
    make_app: MakeApp, name: str, logged: Logged
) -> None:
    class Quick(Command, queue=name):
        pass

    app = make_app(stall_threshold=0.05)
    entered = asyncio.Event()
    leave = asyncio.Event()

    @app.handle(Quick)
    async def wait(message: Quick) -> None:
        entered.set()
        await leave.wait()

    def block_it(depth: int) -> None:
        if depth:
            block_it(depth - 1)
        else:
            assert logged.reported.wait(SECONDS)

    async with app:
        await app.publish(Quick())
        await entered.wait()
        block_it(20)
        leave.set()
    blocked = next(each for each in logged.messages if "handler.blocked_loop" in each)
    assert "handler=- " in blocked
    assert 0 < blocked.count('File "') <= INNERMOST
