"""The plugin as pytest loads it: cheap for who does not use it, and the example of the documentation passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASYNCIO = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-W", "error", "-m", "pytest", "-q", *ASYNCIO, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)


def test_the_example_of_the_documentation_passes(tmp_path: Path) -> None:
    example = tmp_path / "test_unpaid_order.py"
    example.write_text((ROOT / "examples" / "test_unpaid_order.py").read_text())
    done = run(*plugin(), str(example), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_pytest_does_not_import_what_nobody_uses(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n"
        "def test_other():\n"
        "    loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "    assert not loaded & {'aio_pika', 'aiormq', 'pydantic', 'tenacity', 'opentelemetry'}\n"
        "    assert not {name for name in sys.modules if name.startswith(('warren.sdk', 'warren.broker'))}\n"
    )
    done = run(*plugin(), "test_other.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def plugin() -> list[str]:
    """What loads the plugin in a checkout that was installed before it had one."""
    from importlib.metadata import entry_points

    return [] if entry_points(group="pytest11", name="warren") else ["-p", "warren.testing.plugin"]
