"""`warren completion`: candidates for the next word, and the scripts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["top"], {"topology"}),
        (["topology", ""], {"plan", "apply", "export"}),
        (["topology", "apply", "shop:app", "--mis"], {"--mismatch"}),
        (["topology", "apply", "shop:app", "--mismatch", "a"], {"adopt"}),
        (["run", "shop:app", "--w"], {"--workers"}),
        (["ctl", "list_q"], {"list_queues"}),
        (["run", "sh"], set()),
        (["no-such-command", ""], set()),
    ],
)
def test_candidates_for_the_next_word(warren: Command, typed: list[str], offered: set[str]) -> None:
    done = warren("completion", "words", "--", *typed)
    assert done.status == 0
    assert offered <= set(done.out.split())
    assert all(word.startswith(typed[-1]) for word in done.out.split())
    assert bool(done.out) == bool(offered)


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_the_script(warren: Command, tmp_path: Path) -> None:
    command = tmp_path / "warren"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m warren.cli.dispatch "$@"\n')
    command.chmod(0o755)
    program = (
        f'PATH="{tmp_path}:$PATH"\neval "$(warren completion bash)"\n'
        'COMP_WORDS=(warren topology ex); COMP_CWORD=2; _warren; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=280, check=False)
    assert (done.stdout, done.stderr) == ("export\n", "")


def test_an_unknown_shell_is_an_error(warren: Command) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "warren completion words" in warren("completion", shell).out
    assert warren("completion", "csh").status == 2
