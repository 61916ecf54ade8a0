"""A process with the store on a real file system, killed at random moments."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.definitions.definitions_database import Definitions
from warren.broker.store.log.recovery import recover

WRITE = """
import asyncio, sys
from warren.broker.store.definitions.definitions_database import Definitions, QueueRow
from warren.broker.store.data_folder import DataFolder
from warren.broker.store.log.log import Log
from warren.broker.store.log.recovery import recover

async def main():
    loop = asyncio.get_running_loop()
    folder = DataFolder.open(sys.argv[1])
    definitions = Definitions.open(folder, loop)
    queues = definitions.load().queues
    if not queues:
        definitions.put(QueueRow(b"/", b"q", definitions.new_incarnation(), False, b""))
    await definitions.flush()
    incarnation = definitions.load().queues[0].incarnation
    recovery = recover(folder, {incarnation})
    recovery.finish()
    folder.finish_upgrade()
    log = Log(recovery, loop, definitions, segment_size=100_000, slack=200_000)
    queue = log.queue(incarnation)
    first = number = recovery.queues[incarnation].last_sequence + 1
    batches = {}
    def synced(batch):
        nonlocal first
        last = batches.pop(batch, None)
        if last is not None:
            print("synced", last, flush=True)
            # Nine of ten are consumed at once.
            for sequence in range(first, last + 1):
                if sequence % 10:
                    log.acknowledge(queue, sequence)
            first = last + 1
    log.on_synced = synced
    while True:
        for number in range(number, number + 50):
            log.append_message(queue, number, b"", b"%d:" % number + b"x" * 100)
        number += 1
        batches[log.batch] = number - 1
        await asyncio.sleep(0.0005)
        # Do not run ahead of a slow disk: compaction would come as late as its batches.
        while number - first > 1000:
            await asyncio.sleep(0.0005)

asyncio.run(main())
"""


async def surviving(path: Path) -> tuple[dict[int, bytes], list[str], int]:
    folder = DataFolder.open(path)
    definitions = Definitions.open(folder, asyncio.get_running_loop())
    (queue,) = definitions.load().queues
    recovery = recover(folder, {queue.incarnation})
    found = recovery.queues[queue.incarnation]
    await definitions.close()
    folder.close()
    return {number: payload for number, payload, _ in found.messages}, recovery.damage, found.last_sequence


@pytest.mark.processes
def test_a_killed_process_loses_no_synced_message(tmp_path: Path) -> None:
    chance = random.Random(7)
    begun = 1
    kept: set[int] = set()
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITE, tmp_path], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline().startswith("synced")
            until = time.monotonic() + chance.uniform(0.05, 0.4)
            lines = []
            while time.monotonic() < until:
                lines.append(writer.stdout.readline())
            writer.kill()
            lines += writer.stdout.read().splitlines()
        synced = max(int(line.split()[1]) for line in lines if line.startswith("synced "))
        assert synced > begun
        found, damage, last = asyncio.run(surviving(tmp_path))
        assert damage == []
        kept |= {number for number in range(begun, synced + 1) if number % 10 == 0}
        assert kept <= set(found)
        assert all(payload == b"%d:" % number + b"x" * 100 for number, payload in found.items())
        assert last >= synced
        begun = last + 1
        kept = {number for number in found if number % 10 == 0}
    size = sum(file.stat().st_size for file in (tmp_path / "log").glob("*.log"))
    assert size < 2 * len(found) * 150 + 200_000 + 600_000, "the log is compacted along the way"
