"""SDK, patterns, test kit and embedded broker with no more of the system than Windows offers, and with WARREN_PORTABLE."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.in_process_broker import InProcessBroker
from warren.broker import BrokerConfig, StoreError
from warren.broker.management import control_socket
from warren.core.control_client import send_request
from warren.core.control_endpoint import LOOPBACK, read_loopback_endpoint

ROOT = Path(__file__).parents[2]

IMPORTS = """
from tests.support.windows_like import install
install()
import importlib, pkgutil, sys

count = 0
for name in ("core", "wire", "sdk", "patterns", "testing", "broker"):
    package = importlib.import_module(f"warren.{name}")
    for found in pkgutil.walk_packages(package.__path__, f"warren.{name}."):
        if not found.name.startswith("warren.broker.bench"):
            importlib.import_module(found.name)
            count += 1
import warren.core.operating_system.sockets as sockets
import warren.core.operating_system.files as files
assert sockets.UNIX_FAMILY is None and not sockets.COUNTS_UNREAD and not files.FOLDERS_SYNC
assert count > 300, count
"""

PROGRAM = """
import sys
from tests.support.windows_like import install
if sys.argv[2] == "windows":
    install()
import asyncio
from pathlib import Path
from warren.core.control_client import send_request
from warren.sdk import App, Command
from warren.broker import Broker

folder = Path(sys.argv[1])

class Order(Command, queue="orders"):
    number: int

async def run(first):
    async with Broker(data_dir=folder / "data") as broker:
        app = App(broker.url)
        handled = []
        done = asyncio.Event()

        @app.handle(Order)
        async def bill(order: Order) -> None:
            handled.append(order.number)
            if len(handled) == 100:
                done.set()

        async with app:
            for number in range(100):
                await app.publish(Order(number=number))
            await done.wait()
        status = await asyncio.to_thread(send_request, folder / "data" / "control.sock", "check_running", {}, 30)
    assert not (folder / "data" / "control.sock").exists()
    return sorted(handled) == list(range(100))

print([asyncio.run(run(True)), asyncio.run(run(False))])
"""

CLOCK = """
from datetime import timedelta

from warren.patterns import Delay
from warren.sdk import App, Command
from warren.testing import Warren


class Reminder(Command, queue="reminders"):
    number: int


app = App()
delay = Delay()
app.include(delay)
heard: list[int] = []


@app.handle(Reminder)
async def remind(reminder: Reminder) -> None:
    heard.append(reminder.number)


async def test_virtual_time(warren: Warren) -> None:
    async with warren.running(app):
        await delay.after(Reminder(number=1), timedelta(hours=1))
        assert heard == []
        await warren.advance("59m")
        assert heard == []
        await warren.advance("1m")
        assert heard == [1]
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


@pytest.mark.processes
def test_all_modules_import_where_the_system_lacks_what_windows_lacks() -> None:
    done = python("-c", IMPORTS)
    assert done.returncode == 0, done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("system", ["windows", "switch"])
def test_an_embedded_broker_keeps_messages_and_answers_operators(tmp_path: Path, system: str) -> None:
    done = python(
        "-c", PROGRAM, str(tmp_path), system, **({"WARREN_PORTABLE": "1"} if system == "switch" else {})
    )
    assert (done.returncode, done.stdout) == (0, "[True, True]\n"), done.stderr


@pytest.mark.processes
def test_the_test_kit_runs_on_a_virtual_clock(tmp_path: Path) -> None:
    (tmp_path / "test_clock.py").write_text(CLOCK)
    options = ("-q", "-p", "tests.support.windows_like", "-p", "no:cacheprovider", "--rootdir", str(tmp_path))
    done = python("-m", "pytest", *options, str(tmp_path / "test_clock.py"))
    assert done.returncode == 0, done.stdout


@pytest.mark.processes
def test_a_broker_that_uses_portable_ways_is_operated_and_stopped(tmp_path: Path) -> None:
    """The client of the control socket needs no switch."""
    command = [sys.executable, "-m", "warren.cli.dispatch"]
    folder = str(tmp_path / "data")
    environment = {**os.environ, "WARREN_PORTABLE": "1"}
    with subprocess.Popen(
        [*command, "broker", "--port", "0", "--data-dir", folder],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as broker:
        assert broker.stdout is not None
        try:
            assert broker.stdout.readline().startswith("warren broker ready: amqp://")
            assert read_loopback_endpoint(tmp_path / "data" / "control.sock") is not None
            subprocess.run([*command, "ctl", "--data-dir", folder, "check_running"], check=True, timeout=200)
        finally:
            broker.terminate()
        assert broker.wait(200) == 0


def test_a_control_port_wants_the_secret_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "uses_unix_socket", lambda path: False)
    path = tmp_path / "data" / "control.sock"
    with InProcessBroker(tmp_path / "data") as broker:
        endpoint = read_loopback_endpoint(path)
        assert endpoint is not None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for secret in (b"", b"wrong", endpoint.secret.encode()[:-1], endpoint.secret.encode() + b"0"):
            with socket.create_connection((LOOPBACK, endpoint.port), 60) as intruder:
                intruder.sendall(secret + b'\n{"verb": "check_running"}\n')
                # A reset if the broker closes with the request unread.
                with contextlib.suppress(ConnectionResetError):
                    assert intruder.recv(1000) == b""
        assert send_request(path, "check_running", {}, 60)
        second = InProcessBroker(tmp_path / "other", config=BrokerConfig(control_socket=path))
        with pytest.raises(StoreError, match="is the control socket of a running broker"), second:
            pass
        written = path.read_bytes()
        broker.restart()
        assert path.read_bytes() != written
    assert not path.exists()
    # A kill leaves the file.
    path.write_bytes(written)
    with InProcessBroker(tmp_path / "data"):
        assert send_request(path, "check_running", {}, 60)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_no_module_names_what_a_system_lacks(tmp_path: Path, system: str) -> None:
    """By the type stubs of Python's library. The load tool of `warren bench` is for Linux."""
    options = ("--platform", system, "--no-warn-unreachable", "--exclude", "warren/broker/bench/")
    roots = ("core", "wire", "sdk", "patterns", "broker")
    done = python("-m", "mypy", *options, "--cache-dir", str(tmp_path), *roots)
    assert done.returncode == 0, done.stdout
