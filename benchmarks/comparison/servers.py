"""Compared brokers: start and version."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.processes import Child, free_port
from tests.support.rabbitmq import rabbitmq_server
from warren.core.blocking_connection import BlockingConnection
from warren.wire.amqp_url import parse_url

PLAIN = "Warren, plain"
COMPILED = "Warren, compiled"
RABBITMQ = "RabbitMQ"
LAVINMQ = "LavinMQ"
LAVINMQ_UNSYNCED = "LavinMQ, no sync"
"""With `--no-sync`: since 2.9 LavinMQ syncs before every confirm, also for transient messages; with this option never."""

START_SECONDS = 60.0


@dataclass(frozen=True)
class Running:
    """Broker that accepts connections."""

    url: str
    pid: int


@contextmanager
def paused(brokers: Sequence[Running]) -> Iterator[None]:
    """Stop the brokers (SIGSTOP) meanwhile, so that their background work does not affect another broker's latency."""
    for broker in brokers:
        os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for broker in brokers:
            os.kill(broker.pid, signal.SIGCONT)


@dataclass(frozen=True)
class Server:
    """Broker that can be started repeatedly."""

    name: str
    version: str
    run: Callable[..., AbstractContextManager[Running]]
    """With `limited=True` messages must leave memory early, if the broker has such a setting."""

    @property
    def is_warren(self) -> bool:
        return self.name in (PLAIN, COMPILED)


def servers(plain: Path, compiled: Path, lavinmq: Path | None) -> list[Server]:
    """
    :param plain: a Python with Warren's plain build
    :param compiled: one with the compiled build
    :param lavinmq: LavinMQ's binary, if it takes part
    """
    version = f"{commit()}, Python {platform.python_version()}"
    found = [
        Server(PLAIN, version, _warren(plain)),
        Server(COMPILED, version, _warren(compiled)),
        Server(RABBITMQ, _rabbitmq_version(), _rabbitmq),
    ]
    if lavinmq is not None:
        lavinmq_version, help_text = _output_of(str(lavinmq), "--version"), _output_of(str(lavinmq), "--help")
        found.append(Server(LAVINMQ, lavinmq_version, _lavinmq(lavinmq, help_text)))
        if "--no-sync" in help_text:
            found.append(Server(LAVINMQ_UNSYNCED, lavinmq_version, _lavinmq(lavinmq, help_text, "--no-sync")))
    return found


def commit() -> str:
    """Return this checkout's commit; marked with `+` if files differ."""
    changed = _output_of("git", "status", "--porcelain", "--untracked-files=no")
    return _output_of("git", "rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _output_of(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def _rabbitmq_version() -> str:
    return _output_of("dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server")


def _warren(python: Path) -> Callable[..., AbstractContextManager[Running]]:
    @contextmanager
    def run(limited: bool = False) -> Iterator[Running]:
        options = ("--memory-limit", "200MB") if limited else ()
        with (
            tempfile.TemporaryDirectory(prefix="warren-bench-") as folder,
            BrokerProcess(Path(folder) / "data", *options, python=python.absolute()) as broker,
        ):
            yield Running(broker.url, broker.pid)

    return run


@contextmanager
def _rabbitmq(limited: bool = False) -> Iterator[Running]:
    with rabbitmq_server() as server:
        yield Running(server.url, server.pid)


def _lavinmq(binary: Path, help_text: str, *options: str) -> Callable[..., AbstractContextManager[Running]]:
    """Return a function that starts LavinMQ.
    :param help_text: output of `--help`; requested once, because starts are measured
    """

    @contextmanager
    def run(limited: bool = False) -> Iterator[Running]:
        port = free_port()
        with tempfile.TemporaryDirectory(prefix="warren-lavinmq-", ignore_cleanup_errors=True) as folder:
            config = Path(folder) / "lavinmq.ini"
            # The default leaves Nagle's algorithm on: with few messages in flight each reply takes 40 ms.
            config.write_text("[main]\ntcp_nodelay = true\n")
            words = [str(binary), *options, "-c", str(config), "-D", f"{folder}/data"]
            words += ["-b", "127.0.0.1", "-p", str(port)]
            for listens in ("--http-port", "--mqtt-port", "--metrics-http-port", "--clustering-port"):
                if listens in help_text:
                    words += [listens, str(free_port())]
            if "--control-unix-path" in help_text:
                words += ["--control-unix-path", f"{folder}/control.sock"]
            with Child(words, env=dict(os.environ), cwd=Path(folder)) as child:
                url = f"amqp://guest:guest@127.0.0.1:{port}/"
                deadline = time.monotonic() + START_SECONDS
                while not _answers(url):
                    assert child.running, child.errors
                    assert time.monotonic() < deadline, "LavinMQ does not answer"
                    time.sleep(0.005)
                yield Running(url, child.pid)

    return run


def _answers(url: str) -> bool:
    try:
        BlockingConnection(parse_url(url)).close()
    except OSError:
        return False
    return True
