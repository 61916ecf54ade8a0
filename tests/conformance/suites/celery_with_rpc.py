"""Celery on the broker: tasks, retries, countdowns, revokes, remote control, a chord. Run in Celery's environment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
WAIT = 30.0


@contextmanager
def worker(name: str, environment: dict[str, str]) -> Iterator[None]:
    words = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--loglevel", "warning"]
    words += ["--concurrency", "2", "--hostname", f"{name}@localhost"]
    process = subprocess.Popen(words, cwd=FOLDER, env=os.environ | environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait(WAIT)


@pytest.fixture(scope="module")
def application() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    import celery_app

    with worker("conformance", {}):
        deadline = time.monotonic() + WAIT
        while not celery_app.app.control.ping(timeout=0.5):
            assert time.monotonic() < deadline, "no worker"
        yield celery_app


def test_tasks(application: Any) -> None:
    results = [application.add.delay(number, 1) for number in range(50)]
    assert [result.get(WAIT) for result in results] == list(range(1, 51))


def test_an_error_comes_back(application: Any) -> None:
    with pytest.raises(ValueError, match="on purpose"):
        application.fail.delay().get(WAIT)


def test_retries(application: Any) -> None:
    assert application.flaky.delay("").get(WAIT) == 2


def test_a_countdown(application: Any) -> None:
    asked = time.time()
    assert application.now.apply_async(countdown=1.5).get(WAIT) - asked >= 1.5


def test_a_revoke(application: Any) -> None:
    from celery.exceptions import TaskRevokedError

    result = application.add.apply_async((1, 1), countdown=3)
    application.app.control.revoke(result.id, reply=True, timeout=5)
    with pytest.raises(TaskRevokedError):
        result.get(WAIT)


def test_remote_control(application: Any) -> None:
    control = application.app.control
    (answer,) = control.ping(timeout=5)
    assert answer == {"conformance@localhost": {"ok": "pong"}}
    inspect = control.inspect(timeout=5)
    assert "add" in inspect.registered()["conformance@localhost"]
    (queues,) = inspect.active_queues().values()
    assert [queue["name"] for queue in queues] == ["conformance"]
    (limited,) = control.rate_limit("now", "100/m", reply=True, timeout=5)
    assert "ok" in limited["conformance@localhost"]


def test_a_chain_and_a_group(application: Any) -> None:
    from celery import chain, group

    add = application.add
    assert chain(add.s(1, 2), add.s(3), add.s(4)).delay().get(WAIT) == 10
    assert group(add.s(number, number) for number in range(10)).delay().get(WAIT) == list(range(0, 20, 2))


def test_a_chord(tmp_path: Path) -> None:
    program = (
        "from celery import chord; import celery_app as a; "
        f"print(chord([a.add.s(n, n) for n in range(10)])(a.total.s()).get({WAIT}))"
    )
    files = {"CELERY_FILES": str(tmp_path)}
    with worker("chord", files):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=FOLDER,
            env=os.environ | files,
            capture_output=True,
            text=True,
        )
    assert done.stdout == "90\n", done.stderr
