"""`warren run`: an App as a service in one process or several, health probes, restarts and graceful stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pika
import pytest

from tests.cli.conftest import Command, Module
from tests.support.broker_process import BrokerProcess
from tests.support.broker_process import warren as command
from tests.support.pika_connection import pika_connection
from tests.support.polling import wait_until
from tests.support.processes import Child, free_port

WORKER = """
import asyncio, os
from pathlib import Path
from warren.sdk import App, Command

class Work(Command, queue="{name}.work"):
    seconds: float = 0.0

app = App({url!r}, connect_timeout={patience}, **{settings})
VERSION = "one"

@app.handle(Work, concurrency=1)
async def work(message: Work) -> None:
    with open("begun", "a") as file:
        file.write(f"{{os.getpid()}} {{VERSION}} {{message.seconds}}\\n")
    print("begun", message.seconds)
    await asyncio.sleep(message.seconds)
    with open("done", "a") as file:
        file.write(f"{{os.getpid()}} {{VERSION}}\\n")
"""
READY = "warren run ready: "
READY_REPORT: dict[str, Any] = {"state": "ready", "waiting": [], "reason": None}
LONG = 60.0
"""Seconds for a condition on a slow machine."""


class Service:
    """A module with an App and its queue, in its own folder."""

    def __init__(self, write: Module, folder: Path, url: str, name: str) -> None:
        self.folder, self.url, self.queue = folder, url, f"{name}.work"
        self._write, self._name = write, name
        self.write_settings()

    def write_settings(self, **settings: object) -> None:
        """Write the module anew, with further settings of its App."""
        self.text = WORKER.format(name=self._name, url=self.url, patience=60, settings=repr(settings))
        self.module = self._write(self.text)

    def start(self, *options: str, **environment: str) -> Child:
        words = command("run", f"{self.module}:app", *options)
        return Child(words, cwd=self.folder, env=environment)

    def put(self, body: bytes = b"{}", times: int = 1) -> None:
        connection = pika_connection(self.url)
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(times):
            channel.basic_publish("", self.queue, body, pika.BasicProperties(type="work"))
        connection.close()

    def lines(self, file: str) -> list[str]:
        path = self.folder / file
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def service(module: Module, tmp_path: Path, amqp_url: str, name: str) -> Service:
    return Service(module, tmp_path, amqp_url, name)


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def probe(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """Return status and report of the health probe; 0 and an empty report while nobody listens."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=LONG) as response:
            return int(response.status), json.load(response)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)
    except (URLError, OSError):
        return 0, {}


def answer(port: int, path: str) -> int:
    return probe(port, path)[0]


def answered(port: int, path: str) -> int:
    """Return the answer of the health probe. The request is sent at once: the probe drops a stalled connection."""
    answers: list[int] = []

    def ask() -> bool:
        answers.append(answer(port, path))
        return answers[-1] != 0

    wait_until(ask, f"{path} is answered", LONG)
    return answers[-1]


def test_one_process_answers_probes_and_stops_gracefully(service: Service, tmp_path: Path) -> None:
    port = free_port()
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.settimeout(LONG)
    heard.bind(str(tmp_path / "notify"))
    with (
        heard,
        service.start(
            # The watchdog interval is long: there is no second notification.
            "--health",
            str(port),
            NOTIFY_SOCKET=str(tmp_path / "notify"),
            WATCHDOG_USEC="3600000000",
        ) as child,
    ):
        child.wait_for_line(READY, LONG)
        assert {heard.recv(100), heard.recv(100)} == {b"WATCHDOG=1", b"READY=1"}
        assert [answered(port, path) for path in ("/live", "/ready", "/else")] == [200, 200, 404]
        service.put(b'{"seconds": 0.5}')
        # Written at once, although the output is a pipe.
        child.wait_for_line("begun 0.5", LONG)
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(LONG) == 0
        assert heard.recv(100) == b"STOPPING=1"
    assert len(service.lines("done")) == 1
    assert "Traceback" not in child.errors


def test_workers_share_the_work_restart_and_stop_together(service: Service) -> None:
    port = free_port()
    with service.start("--workers", "2", "--health", str(port)) as child:
        child.wait_for_line(f"{READY}2 workers", LONG)
        assert answered(port, "/ready") == 200
        service.put(b'{"seconds": 0.3}', times=6)
        wait_until(lambda: len(service.lines("done")) == 6, "all work is done", LONG)
        pids = {int(line.split()[0]) for line in service.lines("done")}
        assert len(pids) == 2
        assert child.pid not in pids
        victim = pids.pop()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: "ended with signal SIGKILL" in child.errors, "the end is noticed", LONG)
        # Both are ready again. The line on standard output is printed only once, but the probe reports it.
        wait_until(lambda: answer(port, "/ready") == 200, "a new one is ready", LONG)
        before = {int(line.split()[0]) for line in service.lines("begun")}
        os.kill(child.pid, signal.SIGHUP)
        wait_until(lambda: not any(map(running, before)), "the old ones have ended", LONG)
        wait_until(lambda: answer(port, "/ready") == 200, "new ones are ready", LONG)
        service.put(b'{"seconds": 1}', times=2)

        # Messages that ended workers had not acknowledged are redelivered.
        def latest() -> list[int]:
            lines = (line.split() for line in service.lines("begun"))
            return [int(pid) for pid, _, seconds in lines if seconds == "1.0"]

        wait_until(lambda: len(latest()) == 2, "both work", LONG)
        assert not before & set(latest())
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(LONG) == 0
        assert len(service.lines("done")) == len(service.lines("begun"))
        assert not any(running(int(line.split()[0])) for line in service.lines("begun"))


@pytest.mark.processes
@pytest.mark.parametrize("workers", [1, 2])
def test_a_service_starts_while_its_broker_is_away(
    module: Module, tmp_path: Path, name: str, workers: int
) -> None:
    port = free_port()
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.settimeout(LONG)
    heard.bind(str(tmp_path / "notify"))
    with heard, BrokerProcess(tmp_path / "data") as broker:
        service = Service(module, tmp_path, broker.url, name)
        service.write_settings(start="background", longest_retry=0.1)
        broker.stop()
        options = ("--workers", str(workers), "--health", str(port))
        with service.start(*options, NOTIFY_SOCKET=str(tmp_path / "notify")) as child:
            # systemd must not take an outage of the broker for a start that fails.
            assert heard.recv(100) == b"READY=1"

            def refused() -> bool:
                report = probe(port, "/ready")[1]
                return report.get("state") == "connecting" and "no broker listens" in str(report["reason"])

            wait_until(refused, "the probe tells why it is not ready", LONG)
            assert answered(port, "/ready") == 503
            assert answered(port, "/live") == 200
            broker.start()
            child.wait_for_line(READY, LONG)
            wait_until(lambda: probe(port, "/ready") == (200, READY_REPORT), "it is ready", LONG)
            service.put()
            wait_until(lambda: len(service.lines("done")) == 1, "the work is done", LONG)
            assert child.stop(LONG) == 0
        # On a machine that stands still for a while, workers may lose their connections, and be ready again.
        lines = list(dict.fromkeys(line for line in child.lines if line.startswith("warren run")))
        target = f"{service.module}:app"
        assert lines == (
            [f"warren run started: {target}; it waits for its broker", f"{READY}{target}"]
            if workers == 1
            else [f"{READY}2 workers"]
        )
        assert "Traceback" not in child.errors


@pytest.mark.slow  # a minute: until the broker misses its heartbeats
def test_the_end_of_a_worker_is_detected_while_its_child_keeps_its_files_open(service: Service) -> None:
    """Child processes of a handler may inherit the open files of the worker, and outlive it."""
    path = service.folder / f"{service.module}.py"
    start = "import subprocess\nchild = subprocess.Popen(['sleep', '1000'], close_fds=False)\n"
    path.write_text(service.text + start + "Path(f'child-{child.pid}').touch()\n")
    with service.start("--workers", "2") as child:
        child.wait_for_line(READY, LONG)
        service.put()
        wait_until(lambda: bool(service.lines("done")), "a worker works", LONG)
        os.kill(int(service.lines("done")[0].split()[0]), signal.SIGKILL)
        try:
            wait_until(lambda: "ended with signal SIGKILL" in child.errors, "the end is noticed", LONG)
            os.kill(child.pid, signal.SIGTERM)
            wait_until(lambda: not child.running, "the supervisor has ended", LONG)
        finally:
            for file in service.folder.glob("child-*"):
                os.kill(int(file.name.removeprefix("child-")), signal.SIGKILL)
        assert child.wait(LONG) == 0


def test_workers_do_not_outlive_their_supervisor(service: Service) -> None:
    with service.start("--workers", "2") as child:
        child.wait_for_line(READY, LONG)
        service.put(times=1)
        wait_until(lambda: bool(service.lines("done")), "a worker works", LONG)
        (worker,) = {int(line.split()[0]) for line in service.lines("done")}
        os.kill(child.pid, signal.SIGKILL)
        child.wait(LONG)
        wait_until(lambda: not running(worker), "the worker has stopped", LONG)


def test_reload_restarts_when_a_file_changes_even_after_a_syntax_error(service: Service) -> None:
    path = service.folder / f"{service.module}.py"

    def done_by(version: str) -> Callable[[], bool]:
        def check() -> bool:
            service.put()
            return any(line.endswith(version) for line in service.lines("done"))

        return check

    with service.start("--reload") as child:
        child.wait_for_line(READY, LONG)
        wait_until(done_by("one"), "the first version works", LONG)
        path.write_text("this is no Python\n")
        wait_until(lambda: "waits for a change of its files" in child.errors, "the mistake is noticed", LONG)
        assert "SyntaxError" in child.errors
        path.write_text(service.text.replace('"one"', '"two"'))
        wait_until(done_by("two"), "the second version works", LONG)


def test_an_app_that_cannot_run_is_an_error(warren: Command, module: Module, name: str) -> None:
    unreachable = module(WORKER.format(name=name, url="amqp://127.0.0.1:1", patience=0.1, settings="{}"))
    mistaken = module(
        WORKER.format(name=name, url="amqp://127.0.0.1:1", patience=1, settings="{'window': 'x'}")
    )
    for words, status in (
        (["no_such_module:app"], 2),
        ([f"{unreachable}:app"], 74),
        ([f"{unreachable}:app", "--url", "http://127.0.0.1"], 2),
        ([f"{unreachable}:app", "--health", "somewhere"], 2),
        ([f"{unreachable}:app", "--workers", "0"], 2),
        ([f"{mistaken}:nothing"], 2),
    ):
        done = warren("run", *words)
        assert (done.status, len(done.err.strip().splitlines())) == (status, 1), (words, done)


APP = """
from warren.sdk import App, Command

class Work(Command, queue="work"):
    number: int

app = App({url})

@app.handle(Work)
async def work(message: Work) -> None:
    with open("done", "a") as file:
        file.write(f"{{message.number}}\\n")
"""


def test_without_a_broker_the_error_names_the_options(warren: Command, module: Module) -> None:
    done = warren("run", f"{module(APP.format(url=''))}:app")
    assert (done.status, len(done.err.splitlines())) == (2, 1), done
    for choice in ("--url", "AMQP_URL", "--embedded"):
        assert choice in done.err


def test_an_empty_variable_is_an_error(
    warren: Command, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMQP_URL", "")
    done = warren("run", f"{module(APP.format(url=''))}:app")
    assert (done.status, len(done.err.splitlines())) == (2, 1), done
    assert "AMQP_URL is empty" in done.err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--embedded", "--workers", "2"], "one worker"),
        (["--embedded", "--url", "amqp://host"], "give one of them"),
        (["--data-dir", "data"], "--embedded"),
    ],
)
def test_options_that_exclude_each_other_are_an_error(
    options: list[str], why: str, warren: Command, module: Module
) -> None:
    done = warren("run", f"{module(APP.format(url=''))}:app", *options)
    assert (done.status, len(done.err.splitlines())) == (2, 1), done
    assert why in done.err


@pytest.mark.processes
@pytest.mark.parametrize(
    ("url", "why"), [("", "no broker is named"), ("'memory://'", "each of 3 workers would have a broker")]
)
def test_workers_without_a_common_broker_do_not_start(
    url: str, why: str, module: Module, tmp_path: Path, warren: Command
) -> None:
    words = command("run", f"{module(APP.format(url=url))}:app", "--workers", "3")
    with Child(words, cwd=tmp_path) as child:
        assert child.wait(LONG) == 2
    assert why in child.errors
    assert len(child.errors.splitlines()) == 1, child.errors
    assert child.lines == []


@pytest.mark.slow
def test_an_embedded_broker_keeps_what_it_confirmed_when_its_process_is_killed(
    module: Module, tmp_path: Path, warren: Command
) -> None:
    publish = "\nimport asyncio\nasync def main() -> None:\n"
    publish += "    async with app:\n        await app.publish(Work(number=1))\n"
    publish += (
        "        print('confirmed', flush=True)\n        await asyncio.sleep(1000)\nasyncio.run(main())\n"
    )
    text = APP.format(url="")
    # The first process publishes into its own broker, and has no handler.
    name = module(text.partition("@app.handle")[0] + publish)
    folder = tmp_path / "data"
    with Child([sys.executable, f"{name}.py"], cwd=tmp_path, env={"AMQP_URL": f"embedded:{folder}"}) as child:
        child.wait_for_line("confirmed", LONG)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(LONG)
    words = command("run", f"{module(text)}:app", "--embedded", "--data-dir", "data")
    with Child(words, cwd=tmp_path) as child:
        wait_until((tmp_path / "done").exists, "the message is handled", LONG)
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(LONG) == 0
    assert "event=embedded_broker.started" in child.errors
    assert str(folder) in child.errors


def test_a_missing_package_of_an_option_is_an_error(warren: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    done = warren("run", "shop:app", "--reload")
    assert (done.status, done.err) == (
        2,
        "warren run: --reload needs packages that are not installed: pip install 'warrenmq[reload]'\n",
    )


@pytest.mark.processes
def test_a_worker_that_can_never_run_stops_all(module: Module, tmp_path: Path) -> None:
    with Child(command("run", f"{module('')}:app", "--workers", "2"), cwd=tmp_path) as child:
        assert child.wait(LONG) == 2
    assert "has no 'app'" in child.errors
