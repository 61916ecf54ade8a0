"""Type completeness: pyright knows the type of every public name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
UNTYPED = ("django_orders.py", "spark_write.py")
"""Programs that use a library without types for what they call: Django, and pyspark's `createDataFrame`."""
ROOTS = ("core", "wire", "cli", "sdk", "patterns", "broker", "pipeline")
BROKER = (
    "warren.broker.broker.",
    "warren.broker.configuration.config.",
    "warren.broker.model.virtual_clock.",
)
"""Modules that define what `warren.broker` exports; its other modules are private."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("package", "least"), [("warren.sdk", 100), ("warren.patterns", 100), ("warren.testing", 20)]
)
def test_every_public_name_has_a_known_type(package: str, least: int) -> None:
    found = symbols(package)
    assert len(found) > least
    assert [line for symbol in found for line in flaws(symbol)] == []


@pytest.mark.timeout(600)
def test_every_name_that_the_broker_exports_has_a_known_type() -> None:
    exported = [symbol for symbol in symbols("warren.broker") if symbol["name"].startswith(BROKER)]
    assert exported
    own = [line for symbol in exported for line in flaws(symbol) if "partially unknown" not in line]
    assert own == []


@pytest.mark.timeout(600)
def test_pyright_finds_no_fault_in_the_programs_of_the_documentation(tmp_path: Path) -> None:
    """In strict mode, as a reader's editor may run it."""
    project = tmp_path / "pyrightconfig.json"
    # Relative: pyright takes no absolute path here.
    examples = os.path.relpath(ROOT / "examples", tmp_path)
    settings = {
        "include": [f"{examples}/*.py", f"{examples}/tutorial"],
        "exclude": [f"{examples}/{name}" for name in UNTYPED],
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT / root) for root in (*ROOTS, "examples", "examples/tutorial")],
    }
    project.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, "-p", str(project)], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] > 50
    assert [f"{each['file']}: {each['message']}" for each in report["generalDiagnostics"]] == []


def symbols(package: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(verify_types(package))["typeCompleteness"]["symbols"]
    return [symbol for symbol in found if symbol["isExported"]]


def verify_types(package: str) -> str:
    """Run `pyright --verifytypes` and return its report. It resolves imports as the first interpreter on the path does."""
    environment = os.environ | {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join(str(ROOT / root) for root in ROOTS),
        "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
    }
    command = [sys.executable, "-m", "pyright", "--ignoreexternal", "--outputjson", "--verifytypes", package]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    ).stdout


def flaws(symbol: dict[str, Any]) -> list[str]:
    """Return the diagnostics of a symbol whose type is unknown or ambiguous; empty for any other."""
    if symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]:
        return []
    found = [diagnostic["message"] for diagnostic in symbol["diagnostics"]]
    return [f"{symbol['name']}: {message}" for message in found or ["partially unknown"]]
