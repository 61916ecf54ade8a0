"""Definitions: submitted changes are committed in order and survive any stop."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.definitions.definition_rows import VirtualHostRow
from warren.broker.store.definitions.definitions_database import (
    BindingRow,
    Definitions,
    ExchangeRow,
    QueueRow,
    Snapshot,
)
from warren.broker.store.definitions.schema_migrations import VERSION
from warren.broker.store.errors import StoreError
from warren.core.errors import ExitStatus

NAME = b"\x00\xffname"
EXCHANGE = ExchangeRow(b"/", NAME, b"topic", auto_delete=True, internal=False, arguments=b"\x01\x02")
OTHER = ExchangeRow(b"/", b"other", b"fanout", auto_delete=False, internal=True, arguments=b"")
QUEUE = QueueRow(b"/", b"q", 7, auto_delete=False, arguments=b"table")
TO_QUEUE = BindingRow(b"/", NAME, b"q", to_exchange=False, routing_key=b"a.#", arguments=b"")
TO_EXCHANGE = BindingRow(b"/", b"other", NAME, to_exchange=True, routing_key=b"", arguments=b"x")


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Definitions]:
    folder = DataFolder.open(path)
    definitions = Definitions.open(folder, asyncio.get_running_loop())
    try:
        yield definitions
    finally:
        await definitions.close()
        folder.close()


async def stored(path: Path) -> Snapshot:
    async with opened(path) as definitions:
        return definitions.load()


async def test_stored_rows_are_loaded_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as definitions:
        assert definitions.load() == Snapshot((), (), ())
        numbers = [
            definitions.put(EXCHANGE),
            definitions.put(OTHER),
            definitions.put(QUEUE),
            definitions.put(TO_QUEUE),
            definitions.put(TO_EXCHANGE),
            definitions.put(TO_EXCHANGE),
        ]
        assert numbers == [1, 2, 3, 4, 5, 6]
        assert definitions.submitted == 6
        await definitions.flush()
        assert definitions.committed == 6
    assert await stored(tmp_path) == Snapshot((EXCHANGE, OTHER), (QUEUE,), (TO_QUEUE, TO_EXCHANGE))


async def test_close_commits_what_was_submitted(tmp_path: Path) -> None:
    async with opened(tmp_path) as definitions:
        definitions.put(QUEUE)
    assert (await stored(tmp_path)).queues == (QUEUE,)


@pytest.mark.parametrize(
    "row",
    [
        VirtualHostRow("odd", "", "", "classic", protected=False, max_connections=2**63, max_queues=None),
        VirtualHostRow(
            "odd", "", "", "classic", protected=False, max_connections=None, max_queues=-(2**63) - 1
        ),
        VirtualHostRow("\ud800", "", "", "classic", protected=False, max_connections=None, max_queues=None),
    ],
    ids=["large", "small", "half a surrogate pair"],
)
async def test_a_value_that_cannot_be_stored_is_refused_and_later_changes_are_stored(
    tmp_path: Path, row: VirtualHostRow
) -> None:
    async with opened(tmp_path) as definitions:
        with pytest.raises(ValueError, match=r"64 bits|surrogates"):
            definitions.put(row)
        definitions.put(QUEUE)
        await definitions.flush()
    assert (await stored(tmp_path)).queues == (QUEUE,)


async def test_deleting_an_exchange_or_a_queue_deletes_its_bindings(tmp_path: Path) -> None:
    same_name = BindingRow(b"/", b"other", NAME, to_exchange=False, routing_key=b"", arguments=b"")
    other_vhost = BindingRow(b"v", NAME, b"q", to_exchange=False, routing_key=b"", arguments=b"")
    async with opened(tmp_path) as definitions:
        definitions.put(EXCHANGE)
        definitions.put(QUEUE)
        for row in (TO_QUEUE, TO_EXCHANGE, same_name, other_vhost):
            definitions.put(row)
        definitions.delete_exchanges(b"/", [NAME])
        await definitions.flush()
    assert await stored(tmp_path) == Snapshot((), (QUEUE,), (same_name, other_vhost))
    async with opened(tmp_path) as definitions:
        definitions.put(TO_QUEUE)
        definitions.delete_queue(b"/", b"q")
    assert await stored(tmp_path) == Snapshot((), (), (same_name, other_vhost))
    async with opened(tmp_path) as definitions:
        definitions.delete_binding(same_name)
    assert (await stored(tmp_path)).bindings == (other_vhost,)


async def test_changes_are_reported_in_order_watchers_first(tmp_path: Path) -> None:
    reported: list[tuple[str, int]] = []
    async with opened(tmp_path) as definitions:
        definitions.watch(lambda: reported.append(("watch", definitions.committed)))
        definitions.on_committed = lambda change: reported.append(("committed", change))
        for _ in range(500):
            definitions.put(QUEUE)
        await definitions.flush()
    assert reported[-2:] == [("watch", 500), ("committed", 500)]
    assert reported == sorted(reported, key=lambda item: item[1])
    assert len(reported) < 500, "many changes share a commit"


async def test_changes_wait_for_a_batch_of_the_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as definitions:
        definitions.put(EXCHANGE)
        definitions.require_batch(2)
        definitions.put(QUEUE)
        definitions.require_batch(1)
        flushed = asyncio.ensure_future(definitions.flush())
        definitions.on_log_written(1)
        first = asyncio.Event()
        definitions.watch(first.set)
        await first.wait()
        # It would be committed with the first change, before which it was submitted.
        assert definitions.committed == 1
        definitions.on_log_written(2)
        await flushed
        assert definitions.committed == 2


async def test_a_change_whose_batch_the_log_never_wrote_is_not_stored(tmp_path: Path) -> None:
    async with opened(tmp_path) as definitions:
        definitions.put(EXCHANGE)
        definitions.require_batch(1)
        definitions.put(QUEUE)
    found = await stored(tmp_path)
    assert (found.exchanges, found.queues) == ((EXCHANGE,), ())


async def test_flush_without_changes_returns(tmp_path: Path) -> None:
    async with opened(tmp_path) as definitions:
        await definitions.flush()


async def test_incarnations_are_never_used_again(tmp_path: Path) -> None:
    used: set[int] = set()
    for _ in range(3):
        async with opened(tmp_path) as definitions:
            new = {definitions.new_incarnation() for _ in range(1000)}
        assert len(new) == 1000
        assert not used & new
        used |= new


CRASH = """
import asyncio, os, sys
from warren.broker.store.definitions.definitions_database import Definitions, QueueRow
from warren.broker.store.data_folder import DataFolder
async def main():
    definitions = Definitions.open(DataFolder.open(sys.argv[1]), asyncio.get_running_loop())
    numbers = [definitions.new_incarnation() for _ in range(int(sys.argv[2]))]
    definitions.put(QueueRow(b"/", b"kept", numbers[-1], False, b""))
    await definitions.flush()
    definitions.put(QueueRow(b"/", b"perhaps", 5, False, b""))
    print(numbers[0], numbers[-1], flush=True)
    os._exit(9)
asyncio.run(main())
"""


@pytest.mark.processes
def test_a_crash_loses_no_committed_change_and_repeats_no_incarnation(tmp_path: Path) -> None:
    highest = 0
    # More than half of a reserve, so that the next one is needed.
    for count in (10, 700_000, 10):
        done = subprocess.run(
            [sys.executable, "-c", CRASH, tmp_path, str(count)], capture_output=True, text=True
        )
        assert done.returncode == 9, done.stderr
        first, last = map(int, done.stdout.split())
        assert first > highest
        highest = last
        (kept, *_) = asyncio.run(stored(tmp_path)).queues
        assert (kept.name, kept.incarnation) == (b"kept", last)


async def refusal(path: Path) -> StoreError:
    folder = DataFolder.open(path)
    try:
        with pytest.raises(StoreError) as caught:
            Definitions.open(folder, asyncio.get_running_loop())
    finally:
        folder.close()
    assert "\n" not in str(caught.value)
    return caught.value


async def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    await stored(tmp_path)
    database = sqlite3.connect(tmp_path / "definitions.db")
    database.execute("UPDATE meta SET value = 9 WHERE name = 'version'")
    database.commit()
    database.close()
    error = await refusal(tmp_path)
    assert f"has version 9, but this broker reads versions up to {VERSION}" in str(error)
    assert error.status is ExitStatus.USAGE


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    DataFolder.open(tmp_path).close()
    (tmp_path / "definitions.db").write_bytes(b"no database at all" * 100)
    error = await refusal(tmp_path)
    assert "definitions.db cannot be used (file is not a database)" in str(error)
    assert error.status is ExitStatus.USAGE


async def test_a_log_without_definitions_is_refused(tmp_path: Path) -> None:
    DataFolder.open(tmp_path).close()
    (tmp_path / "log" / "0000000000000001.log").write_bytes(b"records")
    assert "definitions.db cannot be used (it is missing or empty)" in str(await refusal(tmp_path))


FAIL = """
import asyncio, resource, sys
from warren.broker.store.definitions.definitions_database import Definitions, QueueRow
from warren.broker.store.definitions.schema_migrations import VERSION
from warren.broker.store.errors import StoreError
from warren.broker.store.data_folder import DataFolder
async def main():
    definitions = Definitions.open(DataFolder.open(sys.argv[1]), asyncio.get_running_loop())
    lines, committed = [], []
    definitions.on_failed = lines.append
    definitions.on_committed = committed.append
    definitions.put(QueueRow(b"/", b"before", 1, False, b""))
    await definitions.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    definitions.put(QueueRow(b"/", b"after", 2, False, b"x" * 100_000))
    for wait in (definitions.flush, definitions.flush, definitions.close):
        try:
            await wait()
        except StoreError as error:
            print(int(error.status), error)
    print(lines, committed)
asyncio.run(main())
"""


@pytest.mark.processes
def test_after_a_disk_failure_nothing_is_committed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FAIL, tmp_path], capture_output=True, text=True)
    # The journal is written before the database.
    line = "cannot write the definitions: File too large"
    assert done.stdout.splitlines() == [f"74 {line}"] * 2 + [f"['{line}'] [1]"], done.stderr
    assert [row.name for row in asyncio.run(stored(tmp_path)).queues] == [b"before"]
