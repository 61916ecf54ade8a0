"""The blocking facade `app.sync`."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.deletion import delete_queue
from warren.sdk import App, Command, ConfigError, Queue, Request, TransportUnavailable, Unroutable


async def test_a_thread_publishes_calls_and_gets(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Twice(Request[int], queue=f"{name}.twice"):
        number: int

    app = make_app()
    app.declare(Queue(name))

    @app.handle(Twice)
    async def twice(request: Twice) -> int:
        return request.number * 2

    def work() -> list[object]:
        with app.sync as sync:
            sync.publish(b"1", key=name)
            report = sync.publish_many([b"2", b"3"], key=name)
            with pytest.raises(Unroutable):
                sync.publish(b"1", key=f"{name}.nowhere")
            first = sync.get(name)
            assert first is not None
            with first:
                got = first.delivery.body
            second = sync.get(name, timeout=60)
            assert second is not None
            second.requeue()
            third = sync.get(name, timeout=60)
            assert third is not None
            assert third.read(bytes) == b"2"
            third.dead_letter("no")
            return [report.confirmed, got, sync.call(Twice(number=21))]

    confirmed, got, answer = await asyncio.to_thread(work)
    assert (confirmed, got, answer) == (2, b"1", 42)
    assert app.state.value == "closed"
    assert not [thread for thread in threading.enumerate() if thread.name == "warren app.sync"]
    await amqp_client.holds(name, 1)


async def test_many_threads_share_one_app(make_app: MakeApp, amqp_client: AsyncClient, name: str) -> None:
    class Note(Command, queue=name):
        number: int

    app = make_app()

    def work() -> None:
        try:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda n: app.sync.publish(Note(number=n)), range(80)))
        finally:
            app.sync.close()

    await asyncio.to_thread(work)
    await amqp_client.holds(name, 80)
    async with make_app() as other:
        message = await other.get(name)
        assert message is not None
        await message.ack()


async def test_blocking_calls_run_on_the_loop_of_a_running_app(make_app: MakeApp, name: str) -> None:
    app = make_app()
    app.declare(Queue(name))
    async with app:
        await asyncio.to_thread(app.sync.publish, b"1", key=name)
        message = await asyncio.to_thread(app.sync.get, name, timeout=60)
        assert message is not None
        await asyncio.to_thread(message.ack)
        with pytest.raises(ConfigError, match="would wait for its own event loop: await"):
            app.sync.publish(b"1", key=name)
        app.sync.close()
        assert app.ready, "what did not start it does not stop it"


async def test_a_call_from_another_event_loop_is_a_config_error(make_app: MakeApp, name: str) -> None:
    app = make_app()

    def elsewhere() -> None:
        async def use() -> None:
            with pytest.raises(ConfigError, match="belongs to another event loop"):
                await app.publish(b"1", key=name)
            with pytest.raises(ConfigError, match="belongs to another event loop"):
                await app.get(name)
            with pytest.raises(ConfigError, match="belongs to another event loop"):
                app.subscriptions  # noqa: B018

        asyncio.run(use())

    async with app:
        await asyncio.to_thread(elsewhere)


def test_a_failed_start_raises_its_reason_and_leaves_nothing() -> None:
    app = App("amqp://127.0.0.1:1", connect_timeout=0.2)
    with pytest.raises(TransportUnavailable):
        app.sync.publish(b"1", key="q")
    assert not [thread for thread in threading.enumerate() if thread.name == "warren app.sync"]
    app.sync.close()


def test_a_failed_connection_is_collected_by_another_thread_without_a_warning() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        app = App("amqp://127.0.0.1:1", connect_timeout=0.2)
        # Its traceback holds the connection.
        error = asyncio.run_coroutine_threadsafe(app.start(), loop).exception(60)
        assert isinstance(error, TransportUnavailable)
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            del app, error
            collecting = threading.Thread(target=gc.collect)
            collecting.start()
            collecting.join()
        assert [str(warning.message) for warning in shown] == []
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_an_interrupted_start_is_undone_and_another_one_begins() -> None:
    """The interruption comes while the broker's greeting is awaited, like Ctrl-C of an impatient user."""
    main = threading.get_ident()
    interrupted = threading.Event()

    def handle_interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = App(f"amqp://127.0.0.1:{listener.getsockname()[1]}", connect_timeout=600)

        def interrupt() -> None:
            with listener.accept()[0] as connection:
                connection.settimeout(600)
                # CPython loses a signal that comes just before a thread begins to wait for a lock, until the wait ends.
                while not interrupted.is_set():
                    signal.pthread_kill(main, signal.SIGINT)
                    interrupted.wait(0.1)
                while connection.recv(1 << 16):
                    pass

        default = signal.signal(signal.SIGINT, handle_interrupt)
        try:
            for _ in range(2):
                interrupted.clear()
                interrupting = threading.Thread(target=interrupt)
                interrupting.start()
                with pytest.raises(KeyboardInterrupt):
                    app.sync.publish(b"1", key="q")
                interrupting.join(600)
                assert app.state.value == "closed"
                assert not [thread for thread in threading.enumerate() if thread.name == "warren app.sync"]
        finally:
            signal.signal(signal.SIGINT, default)


FORK = """
import asyncio, os, sys
from warren.sdk import App, ConfigError, Queue

app = App(sys.argv[1])
app.declare(Queue(sys.argv[2]))

def in_child():
    try:
        app.sync.publish(b"child", key=sys.argv[2], timeout=60)
    except ConfigError as error:
        assert "was forked: start it in each process" in str(error), error
    else:
        raise AssertionError("the run of the parent was used")
    app.sync.close()
    app.sync.publish(b"child", key=sys.argv[2], timeout=60)
    app.sync.close()

def fork():
    child = os.fork()
    if not child:
        try:
            in_child()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0

async def on_an_event_loop():
    async with app:
        await app.publish(b"parent", key=sys.argv[2])
        await asyncio.to_thread(fork)
        await app.publish(b"parent", key=sys.argv[2])

if sys.argv[3] == "loop":
    asyncio.run(on_an_event_loop())
else:
    with app.sync as sync:
        sync.publish(b"parent", key=sys.argv[2])
        fork()
        sync.publish(b"parent", key=sys.argv[2])
"""


@pytest.mark.processes
@pytest.mark.parametrize("started_by", ["loop", "sync"])
async def test_a_forked_process_must_start_its_own_app(
    amqp_url: str, amqp_client: AsyncClient, name: str, started_by: str
) -> None:
    arguments = [sys.executable, "-W", "ignore", "-c", FORK, amqp_url, name, started_by]
    done = await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert sorted(await amqp_client.drain(name)) == [b"child", b"parent", b"parent"]
    await delete_queue(amqp_client.channel, name)
