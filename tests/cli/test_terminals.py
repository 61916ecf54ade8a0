"""Every command of `warren` on every kind of terminal, pipe and broken stream, with messages that hold anything."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import BaseModel

from tests.patterns.sql_sessions import open_sessions, sqlite_url
from tests.support import tiers
from tests.support.broker_process import PATIENT, BrokerProcess, warren
from tests.support.polling import PATIENCE, wait_until
from tests.support.processes import Child, free_port
from tests.support.terminals import (
    TERMINALS,
    Ended,
    in_locale_c,
    on_a_full_disk,
    on_a_narrow_terminal,
    piped,
    without_reader,
)
from warren.cli import completion
from warren.cli.ctl.verbs import VERBS
from warren.core.control_client import ControlError, send_request
from warren.core.errors import ExitStatus
from warren.patterns import IntervalSchedule, Outbox, Saga, SqliteStore, Timers, TransitionTo
from warren.sdk import App, Command, Event

pytestmark = pytest.mark.processes

FORGED: Final = "2026-01-01 00:00:00  completed"
HOSTILE: Final = f"42\n{FORGED}\t\x1b[2J\x9b1m\x7f\u202eö→😀\u2066[/red]"
"""Text that breaks lines and columns, controls a terminal, and is markup."""
SHOWN: Final = rf"42\n{FORGED}\t\x1b[2J\x9b1m\x7f\u202eö→😀\u2066[/red]"
"""The same as a value in an output for people."""
KEY: Final = f"43\n{FORGED}\t\x1b[2J\x7f[/red]"
"""Such a text for ids and keys that are also arguments: ASCII, so that they are the same in every locale."""
SHOWN_KEY: Final = rf"43\n{FORGED}\t\x1b[2J\x7f[/red]"
HARMFUL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff]"
)
LETTERS: Final = 1000
"""Further dead letters, whose list is longer than the 64 KiB that a pipe holds."""
STYLE: Final = re.compile(r"\x1b\[\d*m")

MODULE: Final = """
import os, signal, socket, sys, tempfile, threading
from warren.sdk import App, Command, Queue, Request

app = App(name="shop")
app.declare(Queue("billing"))

class Ask(Request[str], queue="terminals.ask"):
    text: str

@app.handle(Ask)
async def answer(ask: Ask) -> str:
    return ask.text

class Break(Command, queue="terminals.break"):
    text: str

@app.handle(Break)
async def fail(command: Break) -> None:
    raise ValueError(command.text)

brief = App("memory://", name="brief")

def stop_when_ready() -> None:
    path = os.path.join(tempfile.mkdtemp(), "notify")
    notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notified.bind(path)
    os.environ["NOTIFY_SOCKET"] = path

    def wait() -> None:
        assert notified.recv(100) == b"READY=1"
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()

if "shop_on_terminals:brief" in sys.argv:
    stop_when_ready()
"""


class Opened(Event, exchange="terminals.orders", key="opened"):
    order_id: str


class Report(Command, queue="terminals.reports"):
    of: str


class Order(BaseModel):
    state: str = ""


@dataclass(frozen=True)
class Place:
    """Folder with the module `shop_on_terminals`, stores and a broker, all with hostile texts."""

    folder: Path
    broker: BrokerProcess
    management: str
    server: Child
    """Process that runs the App of the module."""

    @property
    def url(self) -> str:
        return self.broker.url


@pytest.fixture(scope="module")
def place(starts_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("terminals")
    (folder / "shop_on_terminals.py").write_text(MODULE, encoding="utf-8")
    port = free_port()
    options = ("--management-port", str(port), "--capture-events", "warren.events")
    with BrokerProcess(folder / "data", *PATIENT, *options) as broker:
        for words in (["add_vhost", "other"], ["set_permissions", "-p", "other", "guest", ".*", ".*", ".*"]):
            assert piped(["ctl", "--data-dir", str(folder / "data"), *words], folder).status == 0
        serve = warren("run", "shop_on_terminals:app", "--url", broker.url)
        with Child(serve, cwd=folder) as server:
            server.wait_for_line("warren run ready")
            found = Place(folder, broker, f"http://127.0.0.1:{port}", server)
            asyncio.run(fill(found))
            yield found


async def fill(place: Place) -> None:
    path = str(place.folder / "patterns.db")
    saga = Saga("orders", Order, store=SqliteStore(path), key="order_id")
    started = asyncio.Event()

    @saga.starts(Opened)
    def start(event: Opened) -> TransitionTo[Order]:
        if event.order_id == KEY:
            started.set()
        return TransitionTo("open", Order())

    timers = Timers("billing", store=SqliteStore(path), sends=[Report])
    app = App("memory://")
    app.include(saga)
    app.include(timers)
    async with app:
        for key in (HOSTILE, KEY):
            await app.publish(Opened(order_id=key))
        await timers.put(IntervalSchedule(HOSTILE, timedelta(hours=1), Report(of="x")))
        await started.wait()
    async with open_sessions(sqlite_url(place.folder)) as sessions:
        writer = App("memory://")
        outbox = Outbox(sessions)
        writer.include(outbox)
        # The App does not run: its messages wait.
        async with sessions.begin() as session:
            await outbox.add(session, Opened(order_id=HOSTILE), ordered_by=HOSTILE)
    async with App(place.url, name="terminals") as filler:
        half = b'{"name": "\\ud83d", "text": "\xc2\x9b1m"}'
        await filler.publish(
            half,
            exchange="",
            key="billing.dead",
            message_id=KEY,
            type=HOSTILE,
            headers={HOSTILE: HOSTILE},
        )
        await filler.publish(HOSTILE.encode(), exchange="", key="billing.dead", message_id="text")
        broken = json.dumps({"text": HOSTILE})
        await filler.publish(
            broken.encode(), exchange="", key="terminals.break", message_id=HOSTILE, type="break"
        )
        many: list[Any] = [b"{}"] * LETTERS
        await filler.publish_many(many, exchange="", key="billing.dead")


Work = Callable[[Place], list[str]]


def at_broker(*words: str) -> Work:
    return lambda place: [*words, "--url", place.url]


def in_store(*words: str) -> Work:
    return lambda place: [*words, "--store", str(place.folder / "patterns.db")]


def in_outbox(*words: str) -> Work:
    return lambda place: [*words, "--database", str(place.folder / "work.sqlite")]


def plainly(*words: str) -> Work:
    return lambda place: list(words)


def with_data(*words: str) -> Work:
    return lambda place: [*words, "--data-dir", str(place.folder / "data")]


def migration(place: Place) -> list[str]:
    sides = ["--source", place.url, "--target", f"{place.url.rstrip('/')}/other"]
    apis = ["--source-management-url", place.management, "--target-management-url", place.management]
    return ["migrate", *sides, *apis, "--dry-run"]


APP: Final = "shop_on_terminals:app"
WORK: Final[dict[tuple[str, ...], Work]] = {
    ("asyncapi",): plainly("asyncapi", APP),
    ("bench",): at_broker("bench", "--seconds", "0.1", "--warmup", "0", "--json"),
    ("broker",): plainly("broker", "--print-config"),
    ("call",): at_broker("call", "shop_on_terminals:Ask", json.dumps({"text": HOSTILE})),
    ("completion", "bash"): plainly("completion", "bash"),
    ("completion", "fish"): plainly("completion", "fish"),
    ("completion", "zsh"): plainly("completion", "zsh"),
    ("definitions", "export"): with_data("definitions", "export", "-"),
    ("definitions", "import"): with_data("definitions", "import", "no-such-file.json"),
    ("demo", "orders"): plainly("demo", "orders", "--timeout", HOSTILE),
    ("dlq", "discard"): at_broker("dlq", "discard", "billing.dead", "--dry-run"),
    ("dlq", "edit"): at_broker("dlq", "edit", "billing.dead", KEY, "--set", "amount=7", "--dry-run"),
    ("dlq", "groups"): at_broker("dlq", "groups", "billing.dead"),
    ("dlq", "ls"): at_broker("dlq", "ls", "billing.dead"),
    ("dlq", "queues"): at_broker("dlq", "queues", APP),
    ("dlq", "replay"): at_broker("dlq", "replay", "billing.dead", "--dry-run"),
    ("dlq", "show"): at_broker("dlq", "show", "billing.dead", KEY),
    ("doctor",): lambda place: [
        *("doctor", "--watch", "0s", "--url", place.url),
        *("--control-socket", str(place.folder / "data" / "control.sock")),
    ],
    ("migrate",): migration,
    ("outbox", "ls"): in_outbox("outbox", "ls"),
    ("outbox", "retry"): in_outbox("outbox", "retry", "--all"),
    ("outbox", "show"): in_outbox("outbox", "show", "1"),
    ("outbox", "skip"): in_outbox("outbox", "skip", "99", "--yes"),
    ("pipeline", "dead-letters"): plainly("pipeline", "dead-letters", "--source", HOSTILE),
    ("pipeline", "delivery-audit"): plainly("pipeline", "delivery-audit", "--source", HOSTILE),
    ("pipeline", "flow"): plainly("pipeline", "flow", "--source", HOSTILE),
    ("pipeline", "order-timeouts"): plainly("pipeline", "order-timeouts", "--source", HOSTILE),
    ("publish",): at_broker("publish", "billing", "{}"),
    ("run",): plainly("run", "shop_on_terminals:brief"),
    ("saga", "ls"): in_store("saga", "ls", "orders"),
    ("saga", "show"): in_store("saga", "show", "orders", KEY),
    ("timers", "cancel"): in_store("timers", "cancel", "billing", f"no {KEY}"),
    ("timers", "ls"): in_store("timers", "ls", "billing"),
    ("topology", "apply"): at_broker("topology", "apply", APP),
    ("topology", "export"): plainly("topology", "export", APP),
    ("topology", "plan"): at_broker("topology", "plan", APP),
    ("trace",): at_broker("trace", KEY),
}
"""Work of each command, except the verbs of `warren ctl`: its words, with hostile texts where it takes any."""


@cache
def commands() -> list[tuple[str, ...]]:
    """Return the words of all commands, as `warren completion` finds them in their own declarations."""

    def below(path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        # `warren ctl help` takes a verb: its pages are those that `help_of` asks for.
        inner = [
            word for word in completion.words([*path, ""]) if word != "help" and not word.startswith("-")
        ]
        if not inner:
            yield path
        for word in inner:
            yield from below((*path, word))

    return list(below(()))


def work_of(command: tuple[str, ...], place: Place) -> list[str]:
    if command[0] != "ctl":
        return WORK[command](place)
    verb = command[1]
    # Others need arguments or change the broker: a verb that does not exist takes the way of an error.
    lists = verb.startswith("list_") and not any(name[-1] not in "?." for name in VERBS[verb].takes)
    return (
        with_data("ctl", verb)(place) if lists else with_data("ctl", verb, "--no-such-option", HOSTILE)(place)
    )


def help_of(command: tuple[str, ...]) -> list[str]:
    return ["ctl", "help", command[1]] if command[0] == "ctl" else [*command, "--help"]


plain_results: dict[tuple[str, ...], Ended] = {}


def in_pipes(words: Sequence[str], place: Place) -> Ended:
    """Return the result of a command whose output goes to pipes; it runs once for all tests."""
    if tuple(words) not in plain_results:
        plain_results[tuple(words)] = piped(words, place.folder)
    return plain_results[tuple(words)]


def check_texts(done: Ended) -> None:
    """Check that the output is for people: no traceback, nothing that controls a terminal or forges a line."""
    for text in (done.out, done.err):
        assert "Traceback" not in text, text
        assert "Exception ignored" not in text, text
        assert not HARMFUL.search(text), text
        assert not [line for line in text.splitlines() if line.startswith(FORGED)], text


def check(name: str, words: Sequence[str], place: Place) -> None:
    """Run a command on the terminal of that name, and compare it with its run in pipes."""
    plain = in_pipes(words, place)
    done = TERMINALS[name](words, place.folder)
    check_texts(Ended(done.status, STYLE.sub("", done.out), done.err) if name == "narrow" else done)
    if name == "no reader" and plain.out:
        assert done.status == ExitStatus.OUTPUT_CLOSED, done
        assert len(done.error_lines) <= len(plain.error_lines), done
    elif name == "full disk" and plain.out:
        assert done.status == ExitStatus.IO, done
        assert done.error_lines[-1].endswith("cannot write the output: No space left on device")
        assert len(done.error_lines) <= len(plain.error_lines) + 1
    else:
        assert done.status == plain.status, done
    if "closed" not in name and name not in ("no reader", "full disk"):
        assert bool(done.out) == bool(plain.out)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each command on each terminal in tier `all`; below, every eighth on one of them, in turn, and few verbs."""
    names = {"terminal": list(TERMINALS), "encoding": ["utf-8", "ascii", "cp1252"]}
    variable = next((each for each in names if each in metafunc.fixturenames), None)
    if variable is None or "command" not in metafunc.fixturenames:
        return
    everything = tiers.chosen() is tiers.Tier.ALL
    verbs = {command for command in commands() if command[0] == "ctl"}
    chosen = WITH_JSON if variable == "encoding" else commands()
    if not everything:
        chosen = [each for each in chosen if each not in verbs][::8] + sorted(verbs & set(chosen))[::60]
    pairs = [
        (command, name)
        for index, command in enumerate(chosen)
        for position, name in enumerate(names[variable])
        if everything or position == index % len(names[variable])
    ]
    ids = [f"{'-'.join(command)}-{name}".replace(" ", "_") for command, name in pairs]
    metafunc.parametrize(("command", variable), pairs, ids=ids)


def test_the_work_of_every_command_is_known() -> None:
    """A new command needs an entry in `WORK`, so that the tests below run it."""
    assert {command for command in commands() if command[0] != "ctl"} == set(WORK)
    assert len([command for command in commands() if command[0] == "ctl"]) > 100


def test_a_command_works_on_a_terminal(command: tuple[str, ...], terminal: str, place: Place) -> None:
    check(terminal, work_of(command, place), place)


@pytest.mark.slow
def test_the_help_of_a_command_works_on_a_terminal(
    command: tuple[str, ...], terminal: str, place: Place
) -> None:
    words = help_of(command)
    check(terminal, words, place)
    assert in_pipes(words, place).status == ExitStatus.SUCCESS


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted({command[:1] for command in commands()}))
def test_help_in_locale_c_is_plain_text(command: tuple[str, ...], place: Place) -> None:
    done = in_locale_c([*command, "--help"], place.folder)
    assert done.status == ExitStatus.SUCCESS, done
    assert not re.search(r"\\[xuU][0-9a-f]{2}", done.out)


WITH_JSON: Final = sorted(
    command
    for command in WORK
    if command[0] not in ("bench", "demo", "pipeline", "run", "asyncapi")
    and ("--json" in completion.words([*command, "-"]) or command[0] == "migrate")
)


def test_json_is_valid_in_every_encoding(command: tuple[str, ...], encoding: str, place: Place) -> None:
    words = [*WORK[command](place), "--json"]
    done = piped(words, place.folder, encoding="utf-8", PYTHONIOENCODING=encoding)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    if done.status in (ExitStatus.SUCCESS, ExitStatus.FAILED) and done.out:
        json.loads(done.out, parse_constant=refuse)
    check_texts(done)
    assert done.status == in_pipes(WORK[command](place), place).status


LISTED: Final = {
    ("dlq", "ls"): SHOWN,
    ("dlq", "show"): SHOWN,
    ("dlq", "groups"): SHOWN,
    ("saga", "ls"): SHOWN,
    ("saga", "show"): SHOWN_KEY,
    ("timers", "ls"): SHOWN,
    ("outbox", "ls"): SHOWN,
    ("outbox", "show"): SHOWN,
    ("trace",): SHOWN_KEY,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("command", LISTED, ids="-".join)
def test_values_from_messages_are_shown_escaped_and_whole(command: tuple[str, ...], place: Place) -> None:
    words = WORK[command](place)
    assert LISTED[command] in in_pipes(words, place).out
    narrow = on_a_narrow_terminal(words, place.folder)
    assert LISTED[command] in STYLE.sub("", narrow.out)


def test_colours_are_for_terminals_without_no_color(place: Place) -> None:
    words = WORK["doctor",](place)
    assert STYLE.search(on_a_narrow_terminal(words, place.folder).out)
    assert not STYLE.search(on_a_narrow_terminal(words, place.folder, NO_COLOR="1").out)
    assert not STYLE.search(on_a_narrow_terminal(words, place.folder, TERM="dumb").out)
    assert not STYLE.search(in_pipes(words, place).out)


def test_a_reader_that_goes_away_in_the_middle_ends_a_command(place: Place) -> None:
    """The reader has read a line, as `head -1` does, and the rest is more than a pipe holds."""
    reading, writing = os.pipe()
    arguments = [*WORK["dlq", "ls"](place), "--limit", str(LETTERS)]
    command = subprocess.Popen(
        warren(*arguments), stdout=writing, stderr=subprocess.PIPE, cwd=place.folder, text=True
    )
    os.close(writing)
    assert os.read(reading, 10)
    os.close(reading)
    _, errors = command.communicate(timeout=PATIENCE)
    assert (command.returncode, errors) == (ExitStatus.OUTPUT_CLOSED, "")


# -- processes that run on


def test_a_log_has_no_line_of_a_message(place: Place) -> None:
    wait_until(lambda: "event=message.dead_lettered" in place.server.errors, "the message is dead-lettered")
    (line,) = [line for line in place.server.errors.splitlines() if "event=message.dead_lettered" in line]
    assert f"message_id=42\\n{FORGED}" in line
    check_texts(Ended(0, "", place.server.errors.replace("Traceback", "")))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("closing", ["", ">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_broker_runs_without_standard_streams(closing: str, tmp_path: Path) -> None:
    words = warren("broker", "--port", "0", "--data-dir", tmp_path / "data")
    with Child(["sh", "-c", f'exec "$0" "$@" {closing}', *words]) as child:
        wait_until(lambda: answers(tmp_path / "data" / "control.sock"), "the broker has started")
        assert child.stop() == ExitStatus.SUCCESS
    assert "Traceback" not in child.errors


def answers(socket: Path) -> bool:
    try:
        send_request(socket, "await_startup", {}, 5.0)
    except ControlError:
        return False
    return True


def check_start(words: list[str], folder: Path) -> None:
    """Check that a process that runs on stops in order if nobody can read the line that says it is ready."""
    quiet = [*words, "--log-level", "error"]
    done = without_reader(quiet, folder)
    assert (done.status, done.err) == (ExitStatus.OUTPUT_CLOSED, "")
    done = on_a_full_disk(quiet, folder)
    assert done.status == ExitStatus.IO
    assert done.error_lines == [f"warren {words[0]}: cannot write the output: No space left on device"]


def test_a_broker_whose_start_nobody_can_read_stops(tmp_path: Path) -> None:
    check_start(["broker", "--port", "0", "--data-dir", str(tmp_path / "data")], tmp_path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_workers_whose_start_nobody_can_read_stop(workers: str, place: Place) -> None:
    check_start(["run", APP, "--workers", workers, "--url", place.url], place.folder)
