"""Dispatcher `warren`: help, import time, and exit statuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Module
from tests.support.broker_process import warren as command
from tests.support.pika_connection import pika_connection
from tests.support.polling import wait_until
from tests.support.processes import Child
from warren.cli.dispatch import GROUP
from warren.core.errors import ExitStatus

REQUEST = """
from warren.sdk import Request

class Ask(Request[int], queue="{name}.never"):
    pass
"""


def test_help_describes_every_command(warren: Command) -> None:
    done = warren("--help")
    assert done.status == 0
    lines = [line.split(maxsplit=1) for line in done.out.splitlines() if line.startswith("  ")]
    assert [line[0] for line in lines] == sorted({point.name for point in entry_points(group=GROUP)})
    assert all(len(line) == 2 and len(line[1]) > 10 for line in lines)
    assert warren().status == 2
    assert warren("no-such-command").err.startswith(
        "warren: no command 'no-such-command'; the commands are asyncapi, "
    )


@pytest.mark.processes
def test_help_imports_no_command() -> None:
    program = (
        "import sys; from warren.cli import dispatch; dispatch.main(['--help']);"
        "print('modules', *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    brought = set(done.stdout.splitlines()[-1].split())
    assert not brought & {"aiormq", "pydantic", "typer", "rich", "opentelemetry", "pyspark"}


@pytest.mark.processes
def test_a_reader_that_has_gone_away_ends_a_command_as_it_ends_other_tools() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(command("--help"), stdout=out, stderr=subprocess.PIPE, check=False, text=True)
    assert (done.returncode, done.stderr) == (ExitStatus.OUTPUT_CLOSED, "")


def test_an_interrupted_command_prints_nothing_and_exits_with_130(
    module: Module, tmp_path: Path, amqp_url: str, name: str
) -> None:
    target = module(REQUEST.format(name=name))
    connection = pika_connection(amqp_url)
    channel = connection.channel()
    channel.queue_declare(f"{name}.never", durable=True)

    def asked() -> bool:
        return bool(channel.queue_declare(f"{name}.never", passive=True).method.message_count)

    with Child(
        command("call", f"{target}:Ask", "{}", "--timeout", "240", "--url", amqp_url), cwd=tmp_path
    ) as child:
        wait_until(asked, "the request waits")
        os.kill(child.pid, signal.SIGINT)
        assert child.wait() == 130
    assert child.errors == ""
    channel.queue_delete(f"{name}.never")
    connection.close()
