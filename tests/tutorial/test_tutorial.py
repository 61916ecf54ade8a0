"""The tutorial: each command of its pages is typed, and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.page_sessions import ROOT, PageSession, page_blocks
from tests.support.processes import free_port
from tests.support.rabbitmq import RabbitMQ

TUTORIAL = ROOT / "docs" / "tutorial"
STEPS = ("first-program", "order-service", "request-reply", "deadline", "database", "production")
ON_RABBITMQ = "The same on RabbitMQ"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[PageSession]:
    """Return a session whose brokers and servers have ports and folders of their own."""
    port, api, health = free_port(), free_port(), free_port()
    with PageSession(
        tmp_path,
        typed={
            "AMQP_URL=amqp://localhost": f"AMQP_URL=amqp://localhost:{port}",
            "localhost:8000": f"localhost:{api}",
            "8081": f"{health}",
        },
        printed={f"127.0.0.1:{port}": "127.0.0.1:5672", f"127.0.0.1:{api}": "127.0.0.1:8000"},
        environment={
            "XDG_DATA_HOME": str(tmp_path),
            "WARREN_BROKER_PORT": str(port),
            "WARREN_BROKER_HANDSHAKE_TIMEOUT": "120",
            "UVICORN_PORT": str(api),
        },
    ) as session:
        yield session


def play(session: PageSession, step: str) -> None:
    """Follow the page of a step, with the files of the steps before it."""
    for before in STEPS[: STEPS.index(step)]:
        session.save_files(page_blocks(TUTORIAL / f"{before}.md"))
    session.play(page_blocks(TUTORIAL / f"{step}.md", without=ON_RABBITMQ))


@pytest.mark.processes
def test_the_first_program(session: PageSession) -> None:
    play(session, "first-program")


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS[1:])
def test_a_step(session: PageSession, step: str) -> None:
    play(session, step)


@pytest.mark.slow
def test_the_services_of_step_3_on_rabbitmq(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    rabbitmq.ctl("add_vhost", "tutorial")
    rabbitmq.ctl("set_permissions", "-p", "tutorial", "guest", ".*", ".*", ".*")
    with PageSession(
        tmp_path,
        typed={"amqp://localhost:5673": f"{rabbitmq.url}tutorial"},
        printed={},
        environment={},
    ) as session:
        for step in ("order-service", "request-reply"):
            session.save_files(page_blocks(TUTORIAL / f"{step}.md"))
        session.play(page_blocks(TUTORIAL / "request-reply.md", section=ON_RABBITMQ))


def test_the_pages_show_each_program_and_no_others() -> None:
    shown = [
        f"{path}"
        for step in STEPS
        for path in re.findall(r'--8<-- "(examples/tutorial/.*)"', (TUTORIAL / f"{step}.md").read_text())
    ]
    programs = [f"examples/tutorial/{each.name}" for each in (ROOT / "examples" / "tutorial").glob("*.py")]
    assert sorted(shown) == sorted(programs)
    titles = [
        block.title
        for step in STEPS
        for block in page_blocks(TUTORIAL / f"{step}.md")
        if block.language == "python"
    ]
    assert [f"examples/tutorial/{title}" for title in titles] == shown


def test_the_packages_that_the_pages_install_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    known = {re.split(r"[\[<>=]", each)[0] for each in extras["tests"]}
    for page in TUTORIAL.glob("*.md"):
        for command in re.findall(r"^\$ pip install (.*)$", page.read_text(), flags=re.M):
            for package in command.replace('"', "").split():
                name, _, extra = package.rstrip("]").partition("[")
                assert name == "warrenmq" or name in known, f"{page.name}: {package}"
                assert not extra or extra in extras, f"{page.name}: {package}"


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_the_programs_are_typed(checker: str) -> None:
    """Strictly, in the folder of a reader, who has installed Warren."""
    folder = ROOT / "examples" / "tutorial"
    command = {"mypy": ["mypy", "--strict", "."], "pyright": ["pyright", "--pythonpath", sys.executable, "."]}
    packages = [
        str(each) for each in ROOT.iterdir() if (each / "warren").is_dir() and each.name != "examples"
    ]
    checked = subprocess.run(
        [sys.executable, "-m", *command[checker]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(packages), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
