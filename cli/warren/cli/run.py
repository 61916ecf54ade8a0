"""`warren run MODULE:APP`: an App as a service, in one process or in several."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from warren.cli.systemd import notify, watchdog_seconds
from warren.cli.typer_commands import Url, commands
from warren.cli.typer_commands import run as run_command
from warren.cli.worker_supervisor import NOT_READY, READY, STATUS_VARIABLE, Supervisor, say
from warren.core.errors import ExitStatus, UsageError, missing_extra_error
from warren.core.log_output import write_logs

if TYPE_CHECKING:
    from warren.sdk import App, Health
    from warren.sdk.extend import StopRequest

STATE_SECONDS = 0.5
"""How often a worker looks whether its App is ready."""

service = commands("Run an App until SIGTERM or SIGINT, then stop it cleanly.")


def main(arguments: Sequence[str]) -> int:
    """Run an App: 0 after a clean stop, 2 if it cannot be loaded, 74 without a broker."""
    return run_command(service, "run", arguments)


@service.command()
def run(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="the App, as in shop.main:app")],
    url: Url = None,
    workers: Annotated[
        int, typer.Option(min=1, max=1000, help="processes; one that ends is started again")
    ] = 1,
    reload: Annotated[bool, typer.Option("--reload", help="start anew when a Python file changes")] = False,
    reload_dir: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", exists=True, help="watch this folder instead of the current one"),
    ] = None,
    health: Annotated[
        str | None, typer.Option(metavar="[HOST:]PORT", help="answer GET /live and /ready here")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="what is logged on standard error")
    ] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="log one JSON object a line")] = False,
) -> int:
    """Run an App until SIGTERM or SIGINT: then its consumers are cancelled, handlers end (within the App's grace period),
    confirms are awaited. A second signal ends it at once. systemd is told when it is ready (Type=notify)."""
    write_logs(log_level, as_json=log_json)
    if url is not None:
        # Before the module is imported: an App() of no URL takes it from there.
        os.environ["AMQP_URL"] = url
    if workers == 1 and not reload:
        return _alone(target, url, health)
    if reload:
        try:
            import watchfiles  # noqa: F401
        except ImportError:
            raise missing_extra_error("reload", "--reload") from None
    command = [sys.executable, "-m", "warren.cli.dispatch", "run", target, "--log-level", log_level]
    command += ["--url", url] if url is not None else []
    command += ["--log-json"] if log_json else []
    return asyncio.run(_supervise(command, workers, health, (reload_dir or [Path.cwd()]) if reload else []))


def _alone(target: str, url: str | None, health: str | None) -> int:
    from warren.cli.import_target import load
    from warren.sdk import App

    app = load(target, App, "an App")
    if url is not None:
        app.use_broker(url)
    asyncio.run(_serve(app, target, health))
    return ExitStatus.SUCCESS


async def _serve(app: App, target: str, health: str | None) -> None:
    from warren.sdk.extend import ProbeServer, StopRequest, serve

    stop = StopRequest()
    probe = ProbeServer(app.health)
    if health is not None:
        await probe.open(*address(health))
    status = os.environ.pop(STATUS_VARIABLE, None)
    beside = [asyncio.create_task(_watchdog())]
    if status is not None:
        beside += [asyncio.create_task(_tell(app, int(status))), asyncio.create_task(_parent_gone(stop))]

    def started() -> None:
        if status is None:
            _ready(target)

    try:
        await serve(app, stop=stop, on_started=started, on_stopping=lambda: notify("STOPPING=1"))
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        probe.close()


async def _supervise(command: Sequence[str], count: int, health: str | None, watched: Sequence[Path]) -> int:
    from warren.sdk.extend import ProbeServer

    # What systemd asks for, the supervisor answers: the workers must not.
    beside = [asyncio.create_task(_watchdog())]
    supervisor = Supervisor(
        command, count, {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": ""}, restart_on_usage=bool(watched)
    )
    supervisor.on_ready = lambda: _ready(f"{count} workers")
    probe = ProbeServer(lambda: _health(supervisor))
    if health is not None:
        await probe.open(*address(health))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        notify("STOPPING=1")
        supervisor.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.restart)
    if watched:
        beside.append(asyncio.create_task(_reload(supervisor, watched)))
    try:
        return await supervisor.run()
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        probe.close()


def _health(supervisor: Supervisor) -> Health:
    from warren.sdk import Health, State

    waiting = tuple(f"worker {worker.number}" for worker in supervisor.workers if not worker.ready)
    return Health(State.READY if supervisor.ready else State.CONNECTING, waiting)


def address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[IPV6]:PORT` or `PORT`, which is one of loopback.

    :raises UsageError: if it is none.
    """
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{text!r} is no address for --health: write PORT or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


async def _reload(supervisor: Supervisor, watched: Sequence[Path]) -> None:
    from watchfiles import PythonFilter, awatch

    async for changes in awatch(*watched, watch_filter=PythonFilter(), recursive=True):
        names = sorted({Path(path).name for _, path in changes})
        say(f"{', '.join(names[:3])}{' and more' if len(names) > 3 else ''} changed: starting anew")
        supervisor.restart()


async def _tell(app: App, pipe: int) -> None:
    """Tell the supervisor when the App becomes ready, and when it is no longer."""
    told = NOT_READY
    with contextlib.suppress(OSError):
        while True:
            state = READY if app.ready else NOT_READY
            if state != told:
                os.write(pipe, state)
                told = state
            await asyncio.sleep(STATE_SECONDS)


async def _parent_gone(stop: StopRequest) -> None:
    """Stop cleanly when the supervisor is gone: standard input is a pipe that ends with it."""
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


def _ready(what: str) -> None:
    notify("READY=1")
    print(f"warren run ready: {what}", flush=True)
