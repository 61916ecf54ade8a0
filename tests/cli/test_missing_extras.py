"""A plain install: everything can be imported, and what needs an extra says which one, in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

PLAIN_INSTALL = """
import contextlib, importlib, io, sys

EXTRAS = set(
    "aiobotocore aiohttp aiosqlite asyncpg boto3 botocore celery cronsim cryptography grpc kombu msgpack numpy pandas"
    " pyarrow pyspark pytest redis regex sqlalchemy watchfiles".split()
)


class Without:
    # A finder of modules that does not find those of the extras.

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in EXTRAS else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""

IMPORTS = """
for package in ("sdk", "sdk.extend", "sdk.planning", "patterns", "patterns.celery", "broker", "testing", "pipeline"):
    module = importlib.import_module(f"warren.{package}")
    for name in module.__all__:
        getattr(module, name)
"""

HELP = """
from importlib.metadata import entry_points
from warren.cli.dispatch import main

for point in entry_points(group="warren.commands"):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            status = main([point.name, "--help"])
        except SystemExit as end:
            status = end.code
    assert status in (0, None), (point.name, status)
    assert out.getvalue(), point.name
"""


def plain(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PLAIN_INSTALL + program, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.processes
def test_every_public_name_and_command_is_there_without_extras() -> None:
    done = plain(IMPORTS + HELP)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.sampled(3)
@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("demo orders", "spark"),
        ("outbox ls --database sqlite+aiosqlite:///outbox.sqlite", "sql"),
        ("broker --port 0 --in-memory --management-port 0", "management"),
        ("run --reload examples.first:app", "reload"),
        ("pipeline dead-letters --source amqp://127.0.0.1/ --queue q --out out", "spark"),
    ],
    ids=lambda value: value.split()[0],
)
def test_a_command_that_needs_an_extra_names_it_in_one_line(words: str, extra: str) -> None:
    program = "from warren.cli.dispatch import main\nsys.exit(main(sys.argv[1:]))"
    done = plain(program, *words.split())
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert f"pip install 'warrenmq[{extra}]'" in done.stderr
