"""`warren broker` as a process: ready line, errors, exit statuses and shutdown."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.support.broker_process import PATIENT, READY, warren
from tests.support.polling import wait_until
from tests.support.processes import Child
from tests.support.raw_client import RawClient
from warren.broker.store.file_system.os_files import OsFiles
from warren.broker.store.format_files import COPY, FORMAT, StoredFormat, write_format

pytestmark = pytest.mark.processes


def start(*arguments: str | Path) -> Child:
    return Child(warren("broker", *arguments))


def refused(*arguments: str | Path) -> tuple[int, list[str]]:
    """Run a broker that does not start, and return its exit status and the lines on standard error."""
    ran = subprocess.run(
        [str(word) for word in warren("broker", *arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.stdout == ""
    return ran.returncode, ran.stderr.splitlines()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Child, str, Path]]:
    """Start a broker, and yield its process, URL and data folder."""
    folder = tmp_path_factory.mktemp("running") / "data"
    with start("--port", "0", "--data-dir", folder) as child:
        yield child, child.wait_for_line(READY).removeprefix(READY), folder


def test_the_ready_line_has_the_url(running: tuple[Child, str, Path]) -> None:
    child, url, folder = running
    assert re.fullmatch(r"amqp://127\.0\.0\.1:\d+", url)
    with RawClient(url) as peer:
        peer.connect().open().close()
    assert child.lines == [READY + url]
    assert folder.is_dir()
    # The log on standard error has a time and a level.
    assert re.search(r"^\d{4}-\d\d-\d\d \S+ INFO warren\.broker", child.errors, re.MULTILINE)


def test_a_port_in_use_is_an_error(running: tuple[Child, str, Path]) -> None:
    port = running[1].rpartition(":")[2]
    assert refused("--in-memory", "--port", port) == (
        2,
        [
            f"warren broker: port {port} at 127.0.0.1 is in use; choose another with --port, or 0 for any free one"
        ],
    )


def test_without_a_data_folder_the_default_one_keeps_what_was_confirmed(tmp_path: Path) -> None:
    """A second broker of the same user does not start on it, and `warren ctl` finds the first."""
    environment = {"XDG_DATA_HOME": str(tmp_path)}
    command = warren("broker", "--port", "0", *PATIENT)
    folder = tmp_path / "warren" / "broker"
    with Child(command, env=environment) as child:
        url = child.wait_for_line(READY).removeprefix(READY)
        assert f"event=broker.data_folder_opened data_dir={folder} origin=default" in child.errors
        with RawClient(url) as peer:
            peer.connect().open()
            peer.declare("kept", durable=True)
            peer.select_confirms()
            peer.publish("", "kept", b"1", commands.Basic.Properties(delivery_mode=2))
            peer.expect(commands.Basic.Ack)
        with Child(command, env=environment) as second:
            assert second.wait() == 2
        assert second.errors == (
            f"warren broker: data folder {folder} is in use by another broker (process {child.pid}); stop it, or choose"
            " another folder with --data-dir\n"
        )
        with Child(warren("ctl", "list_queues", "-q"), env=environment) as listing:
            assert listing.wait() == 0
        assert listing.lines[-1].split() == ["kept", "1"]
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    with (
        Child(command, env=environment) as child,
        RawClient(child.wait_for_line(READY).removeprefix(READY)) as peer,
    ):
        peer.connect().open()
        assert peer.declare_queue("kept", durable=True)[1] == 1


def test_in_memory_says_what_is_lost_and_writes_nothing(tmp_path: Path) -> None:
    with Child(warren("broker", "--port", "0", "--in-memory"), env={"XDG_DATA_HOME": str(tmp_path)}) as child:
        child.wait_for_line(READY)
        assert "event=broker.memory_chosen" in child.errors
        assert list(tmp_path.iterdir()) == []


def test_a_default_folder_that_cannot_be_written_names_the_options(tmp_path: Path) -> None:
    (tmp_path / "warren").write_text("a file")
    with Child(warren("broker", "--port", "0"), env={"XDG_DATA_HOME": str(tmp_path)}) as child:
        assert child.wait() == 2
    (line,) = child.errors.splitlines()
    assert str(tmp_path) in line
    assert "--data-dir" in line
    assert "--in-memory" in line


def test_ctl_without_a_broker_names_the_default_folder(tmp_path: Path) -> None:
    with Child(warren("ctl", "list_queues"), env={"XDG_DATA_HOME": str(tmp_path)}) as child:
        assert child.wait() == 2
    assert f"none runs on the default data folder {tmp_path}/warren/broker" in child.errors


def test_a_data_folder_in_use_is_an_error(running: tuple[Child, str, Path]) -> None:
    status, lines = refused("--port", "0", "--data-dir", running[2])
    assert status == 2
    assert len(lines) == 1
    assert str(running[2]) in lines[0]
    assert "in use" in lines[0]


def test_a_data_folder_of_an_unknown_version_is_an_error(tmp_path: Path) -> None:
    with start("--port", "0", "--data-dir", tmp_path) as child:
        child.wait_for_line(READY)
    for name in (FORMAT, COPY):
        write_format(tmp_path, name, StoredFormat(999, 1), OsFiles())
    status, lines = refused("--port", "0", "--data-dir", tmp_path)
    assert status == 2
    assert len(lines) == 1
    assert "999" in lines[0]


def test_a_data_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    status, lines = refused("--port", "0", "--data-dir", file)
    assert status in (2, 74)
    assert len(lines) == 1
    assert str(file) in lines[0]


def test_an_address_of_another_machine_is_an_error() -> None:
    status, lines = refused("--in-memory", "--port", "0", "--host", "192.0.2.1")
    assert status == 2
    assert len(lines) == 1
    assert "choose an address of this machine with --host" in lines[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--port", "many"],
        ["--port", "70000"],
        ["--port", "-1"],
        ["--nonsense"],
        ["--log-level", "loud"],
        ["extra"],
    ],
)
def test_wrong_arguments_are_an_error(arguments: list[str]) -> None:
    status, lines = refused(*arguments)
    assert status == 2
    assert lines[-1].startswith("warren broker: ")
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_all_connections_and_stops_gracefully(tmp_path: Path, number: signal.Signals) -> None:
    with start("--port", "0", "--data-dir", tmp_path / "data") as child:
        url = child.wait_for_line(READY).removeprefix(READY)
        with (
            RawClient(url) as peer,
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as silent,
        ):
            peer.connect().open()
            peer.declare("kept", durable=True)
            os.kill(child.pid, number)
            text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
            assert peer.refusal() == ("connection", 320, text, (0, 0))
            assert peer.at_end()
            silent.settimeout(60)
            assert silent.recv(1) == b""
            assert child.wait() == 0
        assert child.lines == [READY + url]
        assert "Traceback" not in child.errors
    # Durable queues exist after the restart.
    with (
        start("--port", "0", "--data-dir", tmp_path / "data") as child,
        RawClient(child.wait_for_line(READY).removeprefix(READY)) as peer,
    ):
        peer.connect().open().declare("kept", passive=True)


def test_a_client_that_does_not_read_does_not_block_the_stop(tmp_path: Path) -> None:
    with start("--port", "0") as child, RawClient(child.wait_for_line(READY).removeprefix(READY)) as peer:
        peer.connect().open()
        # Unread returns fill the buffers of both sockets.
        for _ in range(60):
            peer.publish("", "nowhere", b"x" * 100_000, mandatory=True)
        peer.send_bytes(b"")
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait() == 0


def test_further_signals_have_no_effect(tmp_path: Path) -> None:
    """This includes signals that arrive while the interpreter exits."""
    with start("--port", "0", "--data-dir", tmp_path) as child:
        child.wait_for_line(READY)

        def ended() -> bool:
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(child.pid, number)
            return not child.running

        wait_until(ended, "it ends")
        assert child.wait() == 0
