"""`warren run MODULE:APP`: run an App as a service, in one process or in several."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import quote

import typer

from warren.cli.systemd import notify, watchdog_seconds
from warren.cli.typer_commands import Url, command_group
from warren.cli.typer_commands import run_group as run_command
from warren.cli.worker_supervisor import (
    STATUS_VARIABLE,
    WORKERS_VARIABLE,
    Supervisor,
    WorkerState,
    print_status,
)
from warren.core.command_output import OutputClosed, OutputFailed, buffer_lines, write_line
from warren.core.errors import ExitStatus, UsageError, missing_extra_error
from warren.core.log_output import write_logs
from warren.core.operating_system.signals import END_SIGNALS, RELOAD_SIGNAL, on_signal

if TYPE_CHECKING:
    from warren.sdk import App, Health
    from warren.sdk.extend import StopRequest

STATE_SECONDS = 0.5
"""Seconds between two checks in a worker process whether its App is ready."""

service = command_group("Run an App until SIGTERM or SIGINT, then stop it gracefully.")


def main(arguments: Sequence[str]) -> int:
    """Run an App. Return 0 after a graceful stop, 2 if it cannot be loaded or names no broker, 74 if its broker cannot be
    reached."""
    return run_command(service, "run", arguments)


@service.command()
def run(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="the App, such as shop.main:app")],
    url: Url = None,
    embedded: Annotated[
        bool,
        typer.Option("--embedded", help="run a broker with a data folder in the process; for one worker"),
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="data folder of --embedded (default: in the folder of user data)"),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=1000, help="number of processes; one that ends is restarted")
    ] = 1,
    reload: Annotated[bool, typer.Option("--reload", help="restart when a Python file changes")] = False,
    reload_dir: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", exists=True, help="folder to watch instead of the current one"),
    ] = None,
    health: Annotated[
        str | None, typer.Option(metavar="[HOST:]PORT", help="address that serves GET /live and /ready")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(help="lowest level that is logged on standard error"),
    ] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="log one JSON object for each line")] = False,
) -> int:
    """Run an App until SIGTERM or SIGINT. Then cancel its consumers, let handlers end (within the App's grace period) and
    await outstanding confirms. A second signal ends it at once. systemd is notified when it is ready (Type=notify)."""
    write_logs(log_level, as_json=log_json)
    # The lines that handlers print belong beside the log lines of their time.
    buffer_lines()
    if embedded:
        url = _embedded_url(url, data_dir, workers)
    elif data_dir is not None:
        raise UsageError("--data-dir is the folder of the broker that --embedded runs; add --embedded")
    if url is not None:
        # Set before the module is imported: an App() without a URL reads it.
        os.environ["AMQP_URL"] = url
    if workers == 1 and not reload:
        return _run_alone(target, url, health)
    if reload:
        try:
            import watchfiles  # noqa: F401
        except ImportError:
            raise missing_extra_error("reload", "--reload") from None
    command = [sys.executable, "-m", "warren.cli.dispatch", "run", target, "--log-level", log_level]
    command += ["--url", url] if url is not None else []
    command += ["--log-json"] if log_json else []
    return asyncio.run(_supervise(command, workers, health, (reload_dir or [Path.cwd()]) if reload else []))


def _embedded_url(url: str | None, data_dir: Path | None, workers: int) -> str:
    """Return the URL of the broker of `--embedded`.

    :raises UsageError: if the options exclude each other
    """
    if url is not None:
        raise UsageError("--embedded runs a broker, --url names another: give one of them")
    if workers > 1:
        raise UsageError(
            f"--embedded is for one worker, because each of {workers} would have a broker of its own; run `warren broker`"
            " and name it with --url"
        )
    return "embedded:" if data_dir is None else f"embedded:{quote(str(data_dir.absolute()))}"


def _check_broker(app: App) -> None:
    """Refuse an App without a broker that keeps messages and that all workers share.

    :raises UsageError: if nobody has named a broker, or several workers would each have one of their own
    """
    from warren.sdk.extend import Storage

    broker, workers = app.embedded_broker, int(os.environ.get(WORKERS_VARIABLE, "1"))
    if broker is None:
        return
    if broker.storage is Storage.ASSUMED:
        raise UsageError(
            "no broker is named, and messages would be lost; use --url amqp://user:password@host/vhost or AMQP_URL,"
            " or --embedded for one worker with a broker and a data folder of its own"
        )
    if workers > 1:
        raise UsageError(
            f"each of {workers} workers would have a broker of its own, because the App's URL names an embedded one; run"
            " `warren broker` and name it with --url"
        )


def _run_alone(target: str, url: str | None, health: str | None) -> int:
    from warren.cli.import_target import load_object
    from warren.sdk import App

    app = load_object(target, App, "an App")
    if url is not None:
        app.use_broker(url)
    _check_broker(app)
    if STATUS_VARIABLE in os.environ:
        os.write(int(os.environ[STATUS_VARIABLE]), WorkerState().encode())
    asyncio.run(_serve(app, target, health))
    return ExitStatus.SUCCESS


async def _serve(app: App, target: str, health: str | None) -> None:
    from warren.sdk.extend import ProbeServer, StopRequest, serve

    stop = StopRequest()
    probe = ProbeServer(app.health)
    if health is not None:
        await probe.open(*address(health))
    status = os.environ.pop(STATUS_VARIABLE, None)
    has_started = asyncio.Event()
    background = [asyncio.create_task(_watchdog())]
    if status is not None:
        background += [
            asyncio.create_task(_report_state(app, has_started, int(status))),
            asyncio.create_task(_stop_with_parent(stop)),
        ]

    line = ReadyLine(app, target, stop)

    def started() -> None:
        has_started.set()
        if status is None:
            notify("READY=1")
            line.begin()

    try:
        await serve(app, stop=stop, on_started=started, on_stopping=lambda: notify("STOPPING=1"))
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        probe.close()
    if line.error is not None:
        raise line.error


class ReadyLine:
    """Line on standard output that tells once that an App is ready. One that started without its broker has another line
    before that.

    :ivar error: why the line could not be written; the stop has been requested then.
    """

    def __init__(self, app: App, target: str, stop: StopRequest) -> None:
        self.error: OutputClosed | OutputFailed | None = None
        self._app = app
        self._target = target
        self._stop = stop
        self._is_printed = False

    def begin(self) -> None:
        """Print the line, or print that the App waits for its broker, and the line when it is ready."""
        self._print_once_ready()
        if not self._is_printed:
            write_line(f"warren run started: {self._target}; it waits for its broker", flush=True)
            self._app.on_state(lambda state: self._print_once_ready())

    def _print_once_ready(self) -> None:
        if self._is_printed or not self._app.ready:
            return
        self._is_printed = True
        try:
            _print_ready(self._target)
        except (OutputClosed, OutputFailed) as error:
            self.error = error
            self._stop.request()


async def _supervise(command: Sequence[str], count: int, health: str | None, watched: Sequence[Path]) -> int:
    from warren.sdk.extend import ProbeServer

    # Only the supervisor notifies systemd; the workers must not.
    background = [asyncio.create_task(_watchdog())]
    supervisor = Supervisor(
        command,
        count,
        {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "", WORKERS_VARIABLE: str(count)},
        restart_on_usage=bool(watched),
    )
    probe = ProbeServer(lambda: _health(supervisor))
    if health is not None:
        await probe.open(*address(health))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        notify("STOPPING=1")
        supervisor.stop()

    unwritten: list[Exception] = []

    def ready() -> None:
        try:
            _print_ready(f"{count} workers")
        except (OutputClosed, OutputFailed) as error:
            unwritten.append(error)
            stop()

    supervisor.on_started = lambda: notify("READY=1")
    supervisor.on_ready = ready
    for number in END_SIGNALS:
        on_signal(loop, number, stop)
    if RELOAD_SIGNAL is not None:
        on_signal(loop, RELOAD_SIGNAL, supervisor.restart)
    if watched:
        background.append(asyncio.create_task(_reload(supervisor, watched)))
    try:
        result = await supervisor.run()
        if unwritten:
            raise unwritten[0]
        return result
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        probe.close()


def _health(supervisor: Supervisor) -> Health:
    from warren.sdk import Health, State

    unready = [worker for worker in supervisor.workers if not worker.state.ready]
    reasons = [worker.state.reason for worker in unready if worker.state.reason is not None]
    return Health(
        State.READY if supervisor.ready else State.CONNECTING,
        tuple(f"worker {worker.number}" for worker in unready),
        reasons[0] if reasons else None,
    )


def address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT`, `[IPV6]:PORT` or `PORT`, a port of the loopback address, into (host, port).

    :raises UsageError: if it is not an address
    """
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--health {text!r} is not an address; write PORT or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


async def _reload(supervisor: Supervisor, watched: Sequence[Path]) -> None:
    from watchfiles import PythonFilter, awatch

    async for changes in awatch(*watched, watch_filter=PythonFilter(), recursive=True):
        names = sorted({Path(path).name for _, path in changes})
        print_status(f"{', '.join(names[:3])}{' and more' if len(names) > 3 else ''} changed; restarting")
        supervisor.restart()


async def _report_state(app: App, has_started: asyncio.Event, pipe: int) -> None:
    """Write the state of the worker to the supervisor's pipe, each time that it changes.

    :param has_started: set when the start of the App has returned
    :param pipe: file descriptor of the pipe's writing end
    """
    reported = WorkerState()
    with contextlib.suppress(OSError):
        while True:
            health = app.health()
            state = WorkerState(has_started.is_set(), health.ready, health.reason)
            if state != reported:
                os.write(pipe, state.encode())
                reported = state
            await asyncio.sleep(STATE_SECONDS)


async def _stop_with_parent(stop: StopRequest) -> None:
    """Request a graceful stop when the supervisor process has ended.

    Standard input is a pipe from the supervisor, which is closed when the supervisor ends.
    """
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb", buffering=0)
    )
    while await reader.read(4096):
        pass
    stop.request()


async def _watchdog() -> None:
    seconds = watchdog_seconds()
    while seconds is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(seconds)


def _print_ready(what: str) -> None:
    write_line(f"warren run ready: {what}", flush=True)
