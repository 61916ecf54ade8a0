"""Services that the demo starts: the broker as a process that can be killed, and a store."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from warren.core.errors import UsageError
from warren.patterns import RedisStore, SqliteStore, Store

START_SECONDS = 30.0
"""Seconds that a service may take to start."""


class BrokerProcess:
    """Process of `warren broker` that keeps its messages in a data folder, and listens on the same port after each
    restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the broker and wait until it accepts connections.

        :raises UsageError: if it does not start; `broker.log` has its errors
        """
        with (self.folder / "broker.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "warren.cli.dispatch",
                "broker",
                "--port",
                str(self._port),
                "--data-dir",
                str(self.folder / "data"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = (await self._process.stdout.readline()).decode()
        address = line.rpartition("amqp://")[2].strip()
        if not address:
            raise UsageError(f"the broker did not start; see {self.folder / 'broker.log'}")
        self._port = int(address.rpartition(":")[2])
        self.url = f"amqp://guest:guest@{address}/"

    async def kill(self) -> None:
        """Kill the broker with SIGKILL, without any shutdown."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """Stop the broker gracefully."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            await self._process.wait()


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[tuple[Store, str]]:
    """Open a store, and yield it with its description: Redis if `REDIS_URL` or redis-server is available, else SQLite."""
    url = os.environ.get("REDIS_URL")
    server = shutil.which("redis-server")
    if url:
        async with RedisStore(url) as store:
            yield store, "redis (REDIS_URL)"
    elif server:
        socket = folder / "redis.sock"
        async with private_redis(server, folder, socket), RedisStore(f"unix://{socket}") as store:
            yield store, "redis (a private server)"
    else:
        async with SqliteStore(folder / "store.sqlite") as store:
            yield store, "sqlite"


@asynccontextmanager
async def private_redis(server: str, folder: Path, socket: Path) -> AsyncIterator[None]:
    """Run a Redis server for the demo alone until the block ends. It listens on a Unix socket in the demo's folder, so
    it needs no port."""
    process = await asyncio.create_subprocess_exec(
        server,
        *("--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"),
        *("--dir", str(folder), "--save", "", "--appendonly", "no", "--daemonize", "no"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    _, writer = await asyncio.open_unix_connection(socket)
                except OSError:
                    if process.returncode is not None:
                        raise UsageError(
                            f"{server} ended with status {process.returncode}; set REDIS_URL to use another Redis"
                        ) from None
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    await writer.wait_closed()
                    break
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
