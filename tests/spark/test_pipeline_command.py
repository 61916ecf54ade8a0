"""The command `warren pipeline`: one line for each error, and no output of Spark in the terminal."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Audit
from tests.spark.order_data import generated, messages_of_order
from tests.support.broker_process import warren
from warren.cli.dispatch import main as warren_main
from warren.cli.pipeline import main
from warren.core.errors import ExitStatus, UsageError

FINE = ["order-timeouts", "--source", "amqp://localhost", "--queue", "q", "--out", "out"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no job is named; the jobs are order-timeouts"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["order-timeouts"], "the following arguments are required: --source, --out"),
        ([*FINE, "--stream", "s"], "argument --stream: not allowed with argument --queue"),
        ([*FINE, "--remote", "spark://host"], "--remote is 'spark://host': write sc://host:15002"),
        ([*FINE, "--timeout", "soon"], "'soon' is no duration: write"),
        ([*FINE, "--timeout", "99999999999d"], "'99999999999d' is too long: the longest is 36500d"),
        ([*FINE, "--every", "1d" + "9" * 5000 + "s"], "is too long: the longest is 36500d"),
        ([*FINE, "--timeout", "0m"], "the duration must be longer than zero"),
        ([*FINE, "--recount", "10m,x"], "'x' is no duration"),
        ([*FINE, "--read-timeout", "0"], "timeout is 0: it must be more than 0 seconds"),
        ([*FINE, "--queue", ""], "argument --queue: it is empty"),
        ([*FINE, "--source", "localhost"], "not an AMQP URL: it must begin with amqp://"),
        ([*FINE, "--out", __file__], "is not a folder"),
        ([*FINE, "--speed", "9"], "unrecognized arguments: --speed 9"),
    ],
)
def test_invalid_arguments_raise_one_line_errors(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as failed:
        main(arguments)
    assert message in str(failed.value)
    assert "\n" not in str(failed.value)


def test_without_java_the_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert warren_main(["pipeline", *FINE, "--out", str(tmp_path)]) == ExitStatus.USAGE
    errors = capsys.readouterr().err
    assert errors == (
        "warren pipeline: Spark needs Java and there is none: install Java 17 or newer "
        "(Debian: apt install openjdk-17-jre-headless)\n"
    )


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n", "is Java 11"),
        ("#!/bin/sh\necho 'java version \"1.8.0_292\"' >&2\n", "is Java 8"),
        ("#!/bin/sh\n", "does not report its version"),
        (None, "does not run"),
    ],
)
@pytest.mark.processes
def test_a_java_that_is_too_old_or_broken_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, message: str
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    if script is not None:
        java.write_text(script)
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=message) as failed:
        main([*FINE, "--out", str(tmp_path)])
    assert "install Java 17 or newer" in str(failed.value)


def test_without_pyspark_the_error_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyspark.sql", None)
    with pytest.raises(UsageError, match=r"pip install 'warrenmq\[spark\]'"):
        main([*FINE, "--out", str(tmp_path)])


@pytest.mark.parametrize("mode", [[], ["--continuous", "--available-now"]], ids=["once", "continuous"])
def test_a_failure_of_spark_is_reported_in_one_line(
    spark: SparkSession, audit: Audit, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: list[str]
) -> None:
    """A folder for which there is a path, and for the files in it there is none: it would be too long."""
    out = tmp_path
    while len(str(out)) < 3900:
        out /= "x" * 150
    words = ["order-timeouts", "--source", audit.url, "--queue", audit.name, "--out", str(out), *mode]
    assert main(words) == ExitStatus.IO
    *_, errors = capsys.readouterr().err.splitlines()
    assert errors.startswith("warren pipeline: Spark failed: ")


def test_the_command_runs_quietly_and_prints_json(audit: Audit, tmp_path: Path) -> None:
    orders = generated(50, seed=3)
    audit.publish([message for order in orders for message in messages_of_order(order)])
    words = ["order-timeouts", "--source", audit.url, "--queue", audit.name, "--out", str(tmp_path / "out")]
    done = subprocess.run(
        warren("pipeline", *words, "--timeout", "30m", "--json"),
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["job"] == "order-timeouts"
    assert summary["orders"] == 50
    assert [line.split(" s  ")[1] for line in done.stderr.splitlines()] == [
        "starting Spark",
        f"reading {audit.name}",
        "writing orders",
        "counting",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"out"}, "Spark leaves nothing where the user stands"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "events",
        "orders",
        "report.html",
        "spark.log",
        "summary.json",
    }
