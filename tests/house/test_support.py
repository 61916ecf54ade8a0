"""The tools of the tests work themselves, on servers at hand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.processes import Child
from tests.support.proxy import Proxy


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


async def test_proxy_passes_both_ways_and_cuts() -> None:
    async with echo() as url, Proxy(url) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert proxy.connections == 1
        proxy.cut()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


async def test_proxy_cuts_after_the_byte_that_was_asked_for() -> None:
    async with echo() as url, Proxy(url) as proxy:
        proxy.to_server.cut_after(3)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"hello")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(5)
        assert proxy.to_server.passed == 3
        writer.close()


async def test_proxy_holds_back_and_releases() -> None:
    async with echo() as url, Proxy(url) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        proxy.to_client.hold()
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        proxy.to_client.release()
        assert await reader.readexactly(5) == b"hello"
        writer.close()


async def test_proxy_ends_one_direction_and_the_other_goes_on() -> None:
    async with echo() as url, Proxy(url) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        proxy.half_close(proxy.to_server)
        assert await reader.read() == b"<end>"
        writer.close()


async def test_proxy_refuses() -> None:
    async with echo() as url, Proxy(url) as proxy:
        proxy.refuse()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


def test_a_child_that_ends_early_is_reported_with_what_it_said() -> None:
    child = Child(["sh", "-c", "echo hello; echo broken >&2; exit 3"])
    with pytest.raises(AssertionError, match=r"(?s)'ready'.*hello.*broken"):
        child.wait_for_line("ready")
    assert child.wait() == 3


def test_private_redis_answers(redis_url: str) -> None:
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"
