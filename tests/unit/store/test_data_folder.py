"""The data folder: who may use it, and what it says when it cannot be used."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.errors import StoreError
from warren.core.errors import ExitStatus

OPEN = """
import sys
from warren.broker.store.errors import StoreError
from warren.broker.store.data_folder import DataFolder
try:
    DataFolder.open(sys.argv[1])
except StoreError as error:
    print(int(error.status), error)
else:
    print("open", flush=True)
    sys.stdin.read()
"""


def refusal(path: Path) -> StoreError:
    with pytest.raises(StoreError) as caught:
        DataFolder.open(path)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_new_folder_is_private_to_its_owner_and_can_be_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where"
    folder = DataFolder.open(path)
    identity = folder.identity
    folder.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} <= {0o600, 0o700}
    again = DataFolder.open(path)
    assert again.identity == identity
    again.close()


def test_two_folders_have_different_identities(tmp_path: Path) -> None:
    first, second = DataFolder.open(tmp_path / "a"), DataFolder.open(tmp_path / "b")
    assert first.identity != second.identity
    first.close()
    second.close()


def test_no_file_contains_the_host_name(tmp_path: Path) -> None:
    DataFolder.open(tmp_path).close()
    for file in tmp_path.iterdir():
        if file.is_file():
            assert socket.gethostname().encode() not in file.read_bytes()


@pytest.mark.processes
def test_the_error_for_a_locked_folder_names_the_owning_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OPEN, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        error = refusal(tmp_path)
        assert str(error) == (
            f"data folder {tmp_path} is in use by another broker (process {owner.pid}); stop it, or choose another folder"
            " with --data-dir"
        )
        assert error.status is ExitStatus.USAGE
        owner.kill()
    DataFolder.open(tmp_path).close()


def test_one_process_cannot_open_the_folder_twice(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path)
    assert f"(process {os.getpid()})" in str(refusal(tmp_path))
    folder.close()
    folder.close()


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert "is not a folder" in str(refusal(path))
    assert refusal(path / "below").status is ExitStatus.USAGE


@pytest.mark.processes
def test_a_read_only_folder_is_refused() -> None:
    # Root may write everywhere, so the child becomes the user nobody after its imports, who cannot enter pytest's.
    drop = "import os\nif os.getuid() == 0: os.setgroups([]), os.setgid(65534), os.setuid(65534)\ntry:"
    with tempfile.TemporaryDirectory() as parent:
        path = Path(parent, "data")
        path.mkdir(mode=0o555)
        path.parent.chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", OPEN.replace("try:", drop, 1), path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    assert done.stdout == f"2 cannot write in the data folder {path}: Permission denied\n", done.stderr
