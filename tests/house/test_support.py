"""Test support: proxy, child processes, private Redis and PostgreSQL, worker processes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from tests.support.postgres import postgres_server
from tests.support.processes import Child
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers, worker_host

pytestmark = pytest.mark.processes


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write(b"<end>")
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_the_proxy_forwards_both_ways_until_it_is_cut() -> None:
    async with echo() as url, Proxy(url) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert proxy.connections == 1
        proxy.cut()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


async def test_the_proxy_cuts_after_a_given_number_of_bytes() -> None:
    async with echo() as url, Proxy(url) as proxy:
        proxy.to_server.cut_after(3)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"hello")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(5)
        assert proxy.to_server.passed == 3
        writer.close()


async def test_the_proxy_holds_back_and_releases() -> None:
    async with echo() as url, Proxy(url) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        proxy.to_client.hold()
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        proxy.to_client.release()
        assert await reader.readexactly(5) == b"hello"
        writer.close()


async def test_the_proxy_half_closes_one_direction() -> None:
    async with echo() as url, Proxy(url) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        proxy.half_close(proxy.to_server)
        assert await reader.read() == b"<end>"
        writer.close()


async def test_the_proxy_refuses_connections() -> None:
    async with echo() as url, Proxy(url) as proxy:
        proxy.refuse()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


def test_an_error_about_a_child_that_exits_early_has_its_output() -> None:
    child = Child(["sh", "-c", "echo hello; echo broken >&2; exit 3"])
    with pytest.raises(AssertionError, match=r"(?s)'ready'.*hello.*broken"):
        child.wait_for_line("ready")
    assert child.wait() == 3


def test_the_private_redis_answers(redis_url: str) -> None:
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"


async def test_the_private_postgres_keeps_committed_rows_through_a_crash() -> None:
    with postgres_server() as server:
        session = await asyncpg.connect(server.url)
        await session.execute("CREATE TABLE kept (x int); INSERT INTO kept VALUES (42)")
        server.crash()
        with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
            await session.execute("SELECT 1")
        server.start()
        session = await asyncpg.connect(server.url)
        assert await session.fetchval("SELECT x FROM kept") == 42
        await session.close()


async def steps(worker: WorkerChannel, fail: bool) -> None:
    worker.report("first")
    assert not fail, "the test asked for it"
    await worker.report_and_wait("waits")
    worker.report("second")


async def test_workers_report_their_steps_and_can_be_killed_between_them() -> None:
    with worker_host() as host:
        async with Workers(host) as workers:
            killed = await workers.start(steps, fail=False)
            await workers.wait_for("waits")
            killed.kill()
            other = await workers.start(steps, fail=False)
            await workers.wait_for("waits", times=2)
            other.resume()
            await workers.wait_for("second")
            assert workers.reports == ["first", "waits", "first", "waits", "second"]
            await workers.start(steps, fail=True)
            with pytest.raises(AssertionError, match="the test asked for it"):
                await workers.wait_for("third")
