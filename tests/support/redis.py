"""A private redis-server: its own free loopback port and folder, nothing kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import Child, free_port


@contextmanager
def redis_server(folder: Path, *options: str, port: int | None = None) -> Iterator[str]:
    """Run one for as long as the block lasts.

    :param options: further settings, as on redis-server's command line; they win
    :param port: default: a free one
    :return: its URL
    :raises FileNotFoundError: if no redis-server is installed (`make test` installs it)
    """
    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError("redis-server is not installed: make test installs it")
    port = free_port() if port is None else port
    settings = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(folder),
        "--save",
        "",
        "--appendonly",
        "no",
        *options,
    ]
    with Child([program, *settings]) as server:
        _wait_ready(server)
        yield f"redis://127.0.0.1:{port}/0"


def _wait_ready(server: Child) -> None:
    from tests.support.polling import wait_until

    wait_until(
        lambda: not server.running or any("Ready to accept connections" in line for line in server.lines),
        "redis-server accepts connections",
    )
    assert server.running, "\n".join(server.lines)
