"""Steps of the checks: a second chance for tests that fail, time limits, and the table of results."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ci.step import records
from tests.support.polling import wait_until

ROOT = Path(__file__).parents[2]

MAKEFILE = """
PARALLEL ?= -n 2
test:
\t{python} -m pytest -q -p no:warren $(PARALLEL) $(PYTEST_FLAGS)
set-up:
\t@echo set-up failed && exit 1
"""

ALWAYS_FAILS = """
def test_always_fails():
    assert False, "as planted"
"""

FAILS_ONCE = """
import pytest
from pathlib import Path

@pytest.mark.parametrize("number", range({count}))
def test_fails_once(number):
    file = Path(__file__).with_suffix(f".{{number}}")
    if not file.exists():
        file.touch()
        assert False, "as planted"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder in which `make test` runs a test that passes."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_passes.py").write_text("def test_passes():\n    pass\n")
    (tmp_path / "Makefile").write_text(MAKEFILE.format(python=sys.executable))
    return tmp_path


def run(project: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Nothing of the make and the pytest that run this test.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PY"))
    }
    inherited.pop("PARALLEL", None)
    environment = {**inherited, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", f"tests.ci.{module}", *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def run_tests(project: Path, name: str = "test", target: str = "test") -> subprocess.CompletedProcess[str]:
    return run(project, "step", "--folder", "checks", "--tests", name, "--", "make", target)


@pytest.mark.processes
def test_a_step_that_passes_prints_the_closing_line_of_pytest_and_its_time(project: Path) -> None:
    done = run_tests(project)
    closing, last = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert closing.startswith("1 passed in ")
    assert last.startswith("test: passed (")


@pytest.mark.processes
def test_a_test_that_passes_the_second_time_is_printed_and_the_step_passes(project: Path) -> None:
    (project / "test_flaky.py").write_text(FAILS_ONCE.format(count=2))
    done = run_tests(project)
    assert done.returncode == 0, done.stdout
    assert "AssertionError: as planted" in done.stdout
    nodes = [f"test_flaky.py::test_fails_once[{number}]" for number in range(2)]
    *_, first, second, closing, last = done.stdout.splitlines()
    assert [first, second] == [f"flaky: {node}" for node in nodes]
    assert closing.startswith("2 passed in "), "only what failed ran again"
    assert last.startswith("test: passed (")
    (record,) = records(project / "checks")
    assert (record.passed, record.flaky) == (True, nodes)


@pytest.mark.processes
def test_a_test_that_fails_twice_fails_the_step(project: Path) -> None:
    (project / "test_flaky.py").write_text(FAILS_ONCE.format(count=1))
    (project / "test_broken.py").write_text(ALWAYS_FAILS)
    done = run_tests(project)
    assert done.returncode == 1
    assert "flaky: test_flaky.py::test_fails_once[0]" in done.stdout
    assert "flaky: test_broken.py" not in done.stdout
    assert "test: failed: 1 of 2 failed tests failed again (" in done.stdout.splitlines()[-1]


@pytest.mark.processes
def test_more_than_five_flaky_tests_fail_the_step(project: Path) -> None:
    (project / "test_flaky.py").write_text(FAILS_ONCE.format(count=6))
    done = run_tests(project)
    assert done.returncode == 1
    assert "flaky: " not in done.stdout
    assert "test: failed: 6 tests failed (" in done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.processes
def test_flaky_tests_of_all_steps_are_counted_together(project: Path) -> None:
    (project / "test_flaky.py").write_text(FAILS_ONCE.format(count=3))
    assert run_tests(project, "first").returncode == 0
    for file in project.glob("test_flaky.[0-9]"):
        file.unlink()
    done = run_tests(project, "second")
    assert done.returncode == 1
    assert "second: failed: 3 tests failed, and 3 were flaky before (" in done.stdout.splitlines()[-1]


@pytest.mark.sampled(2)
@pytest.mark.processes
@pytest.mark.parametrize(
    "content", ["import missing_module\n", "def test_passes(unknown_fixture):\n    pass\n"]
)
def test_a_file_or_a_fixture_that_cannot_be_loaded_fails_the_step(project: Path, content: str) -> None:
    (project / "test_broken.py").write_text(content)
    done = run_tests(project)
    assert done.returncode == 1
    assert "test: failed: " in done.stdout.splitlines()[-1]


@pytest.mark.processes
def test_a_failure_before_pytest_has_no_second_chance_and_shows_its_output(project: Path) -> None:
    done = run_tests(project, target="set-up")
    assert done.returncode == 1
    first, *_, last = done.stdout.splitlines()
    assert first == "set-up failed"
    assert last.startswith("test: failed: exit status 2 (")


@pytest.mark.processes
def test_a_step_ends_at_its_time_limit_with_all_its_processes(project: Path) -> None:
    seconds = str(10**6 + os.getpid())  # names the process
    limited = ("--folder", "checks", "--limit", "0.02", "long", "--", "sh", "-c", f"sleep {seconds} & wait")
    done = run(project, "step", *limited)
    assert done.returncode == 1
    assert done.stdout.startswith("long: failed: not done within 0.02 minutes (")

    def ended() -> bool:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if file.read_bytes() == f"sleep\0{seconds}\0".encode():
                    return False
        return True

    wait_until(ended, "the child of the command has ended")


@pytest.mark.processes
def test_the_report_has_a_row_for_each_step_and_fails_if_one_failed(project: Path) -> None:
    (project / "test_flaky.py").write_text(FAILS_ONCE.format(count=1))
    assert run_tests(project).returncode == 0
    report = run(project, "report", "checks")
    assert report.returncode == 0
    rows = report.stdout.splitlines()
    assert rows[2] == "| Step | Result | Seconds | Flaky |"
    assert rows[4].startswith("| test | passed: 1 passed in ")
    assert rows[4].endswith(" | 1 |")
    assert rows[-1] == "- test: `test_flaky.py::test_fails_once[0]`"
    assert (project / "checks/report.md").read_text() == report.stdout

    run(project, "step", "--folder", "checks", "fuzz", "--", "false")
    report = run(project, "report", "checks")
    assert report.returncode == 1
    assert report.stdout.splitlines()[5].startswith("| fuzz | **failed**: exit status 1 | ")
