"""Write a data folder of the current format with every kind of record and definition.

    python -m tests.unit.store.frozen.write tests/unit/store/frozen/vN

Run it once for each format version. Never change its output afterwards: every later version must read it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.definitions.definitions_database import (
    BindingRow,
    Definitions,
    ExchangeRow,
    QueueRow,
    Snapshot,
)
from warren.broker.store.log.log import Log
from warren.broker.store.log.recovery import recover

DEFINITIONS = Snapshot(
    exchanges=(
        ExchangeRow(b"/", b"audit", b"fanout", auto_delete=False, internal=True, arguments=b""),
        ExchangeRow(b"/", b"orders", b"topic", auto_delete=True, internal=False, arguments=b"\x00\x01\xff"),
    ),
    queues=(
        QueueRow(b"/", b"dead", 2, auto_delete=True, arguments=b""),
        QueueRow(b"/", b"work", 1, auto_delete=False, arguments=b"arguments"),
    ),
    bindings=(
        BindingRow(b"/", b"orders", b"audit", to_exchange=True, routing_key=b"#", arguments=b""),
        BindingRow(b"/", b"orders", b"work", to_exchange=False, routing_key=b"orders.*", arguments=b"more"),
    ),
)
LARGE = bytes(range(256)) * 300
"""A payload that runs over a block."""
WORK = [
    (1, b"head of 1, content of 1", 0),
    (4, b"", 0),
    (5, LARGE, 3),
    (6, b"alike, 6", 0),
    (7, b"alike, 7", 0),
    (1000, b"for both", 0),
    (1001, b"last", 0),
]
BUNDLED = (6, 7)
"""The messages of WORK that are bundled; version 1 has no bundles."""
DEAD = [(2, b"for both", 1)]
LAST = {1: 1001, 2: 3}


async def write(path: Path) -> None:
    folder = DataFolder.open(path)
    definitions = Definitions.open(folder, asyncio.get_running_loop())
    assert [definitions.new_incarnation() for _ in range(2)] == [1, 2]
    for exchange in DEFINITIONS.exchanges:
        definitions.put(exchange)
    for queue in DEFINITIONS.queues:
        definitions.put(queue)
    for binding in DEFINITIONS.bindings:
        definitions.put(binding)
    recovery = recover(folder, {1, 2, 3})
    recovery.finish()
    log = Log(recovery, asyncio.get_running_loop(), definitions, segment_size=40_000)
    folder.finish_upgrade()
    work, dead, gone = log.queue(1), log.queue(2), log.queue(3)
    log.append_message(work, 1, b"head of 1, ", b"content of 1")
    for number in (2, 3):
        log.append_message(work, number, b"acknowledged", b"")
    log.append_message(work, 4, b"", b"")
    log.append_message(gone, 1, b"", b"of a queue that is not among the definitions")
    log.append_message(work, 5, b"", LARGE)
    alike = b"alike, "
    for number in BUNDLED:
        log.append_message(work, number, alike, b"%d" % number)
    log.record_delivery_count(work, 5, 1)
    log.acknowledge(work, 2)
    log.fan_out([(work, 1000), (dead, 2)], b"for ", b"both")
    await until_synced(log)
    log.record_delivery_count(work, 5, 3)
    log.record_delivery_count(dead, 2, 1)
    log.begin_group()
    log.acknowledge(work, 3)
    log.append_message(dead, 3, b"", b"dies in the next batch")
    log.append_message(work, 1001, b"", b"last")
    log.end_group()
    await until_synced(log)
    log.acknowledge(dead, 3)
    await log.close()
    await definitions.close()
    folder.close()


async def until_synced(log: Log) -> None:
    batch = log.batch
    done = asyncio.Event()
    log.on_synced = lambda synced: done.set() if synced >= batch else None
    await done.wait()


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
