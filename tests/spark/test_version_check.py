"""Version check of pickled classes: a one-line error if Warren is missing or has another version."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from pyspark import cloudpickle

from tests.support.python_environments import python_elsewhere
from warren.pipeline.datasource import AmqpDataSource
from warren.pipeline.version_check import own_version

pytestmark = pytest.mark.processes

LOAD = """
import pickle, sys
loaded = pickle.load(sys.stdin.buffer)
print(type(loaded).__name__, loaded.__name__ if isinstance(loaded, type) else loaded.options["queue"])
"""
SOURCE = AmqpDataSource({"url": "amqp://guest:secret@127.0.0.1/", "queue": "orders"})


def load_pickled(python: Path, pickled_object: object) -> subprocess.CompletedProcess[bytes]:
    pickled = cloudpickle.dumps(pickled_object)  # type: ignore[no-untyped-call]
    return subprocess.run([python, "-c", LOAD], input=pickled, capture_output=True, timeout=200, check=False)


@pytest.mark.parametrize("pickled_object", [AmqpDataSource, SOURCE], ids=["class", "object"])
def test_a_python_without_warren_raises_an_error_with_the_package_to_install(
    tmp_path: Path, pickled_object: object
) -> None:
    python = python_elsewhere(tmp_path / "bare", None)
    ran = load_pickled(python, pickled_object)
    last = ran.stderr.decode().splitlines()[-1]
    assert "PipelineError: " in last
    assert "lacks warren: install warrenmq[spark]==" + own_version() in last
    assert "PYSPARK_PYTHON" in last
    assert "secret" not in ran.stderr.decode()


def test_a_python_with_another_warren_names_both_versions(tmp_path: Path) -> None:
    python = python_elsewhere(tmp_path / "other", "0.0.1")
    last = load_pickled(python, SOURCE).stderr.decode().splitlines()[-1]
    assert (
        f"has Warren 0.0.1, but the job was started with {own_version()}: install warrenmq[spark]==" in last
    )


def test_a_python_with_the_same_warren_loads_class_and_object(tmp_path: Path) -> None:
    python = python_elsewhere(tmp_path / "same", own_version())
    for pickled_object, output in (
        (AmqpDataSource, "VersionChecked AmqpDataSource"),
        (SOURCE, "AmqpDataSource orders"),
    ):
        ran = load_pickled(python, pickled_object)
        assert ran.stdout.decode().strip() == output, ran.stderr.decode()


def test_without_the_extra_spark_sees_no_default_source(tmp_path: Path) -> None:
    python = python_elsewhere(tmp_path / "plain", own_version(), "pyarrow")
    asked = "import pyspark_warren; print(hasattr(pyspark_warren, 'DefaultSource'))"
    ran = subprocess.run([python, "-c", asked], capture_output=True, text=True, timeout=200, check=False)
    assert (ran.stdout.strip(), ran.stderr) == ("False", "")
