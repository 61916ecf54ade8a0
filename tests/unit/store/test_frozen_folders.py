"""Data folders of every released format version can be read and continued."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.unit.store.frozen.write import BUNDLED, DEAD, DEFINITIONS, LAST, WORK, write
from warren.broker.store.data_folder import VERSION, DataFolder
from warren.broker.store.definitions.definitions_database import Definitions
from warren.broker.store.log.log import Log
from warren.broker.store.log.recovery import recover

FROZEN = Path(__file__).parent / "frozen"


async def read_and_go_on(path: Path, clean: bool, version: int = VERSION) -> None:
    work = [message for message in WORK if version > 1 or message[0] not in BUNDLED]
    folder = DataFolder.open(path)
    definitions = Definitions.open(folder, asyncio.get_running_loop())
    assert definitions.load() == DEFINITIONS
    assert definitions.new_incarnation() > 2
    recovery = recover(folder, {1, 2})
    if clean or version < 3:
        assert recovery.damage == []
    else:
        assert recovery.damage == [
            "log/clean, the mark of a clean stop, is missing: all messages count as delivered before"
        ]
    assert recovery.clean is clean
    assert recovery.queues[1].messages == work
    assert recovery.queues[2].messages == DEAD
    assert {number: queue.last_sequence for number, queue in recovery.queues.items()} == LAST
    recovery.finish()
    log = Log(recovery, asyncio.get_running_loop(), definitions)
    folder.finish_upgrade()
    log.append_message(log.queue(2), 4, b"", b"new")
    log.acknowledge(log.queue(1), 5)
    await log.close()
    again = recover(folder, {1, 2})
    assert again.damage == []
    assert again.queues[1].messages == [message for message in work if message[0] != 5]
    assert again.queues[2].messages == [*DEAD, (4, b"new", 0)]
    await definitions.close()
    folder.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("version", sorted(path.name for path in FROZEN.glob("v*")))
def test_a_frozen_folder_can_be_read_and_continued(
    version: str, clean: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / version
    shutil.copytree(FROZEN / version, path)
    if not clean:
        (path / "log" / "clean").unlink()
    asyncio.run(read_and_go_on(path, clean, int(version[1:])))
    assert "rebuilt" not in caplog.text
    assert "mark_lost" not in caplog.text


def test_the_current_format_version_has_a_frozen_folder(tmp_path: Path) -> None:
    assert (FROZEN / f"v{VERSION}" / "format").exists()
    asyncio.run(write(tmp_path))
    asyncio.run(read_and_go_on(tmp_path, clean=True))
