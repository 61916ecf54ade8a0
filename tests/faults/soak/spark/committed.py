"""Committed output of a streaming query: the Parquet files that the sink's log names, in order.

A file that a killed task left in the folder is not part of the output (Spark's file sink, `_spark_metadata`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from tests.faults.soak.spark.arrivals import Arrivals, identity


def files(output: Path) -> list[Path]:
    """Return the committed files, by micro-batch and task."""
    entries = batches(output / "_spark_metadata")
    # A compact entry repeats all earlier entries, which Spark removes in time.
    whole = max((place for place, entry in enumerate(entries) if entry.suffix == ".compact"), default=0)
    found: list[Path] = []
    for entry in entries[whole:]:
        _, *lines = entry.read_text().splitlines()
        found += [Path(unquote(urlsplit(json.loads(line)["path"]).path)) for line in lines]
    return found


def count(output: Path) -> int:
    """Return the number of rows."""
    return sum(int(pq.read_metadata(file).num_rows) for file in files(output))


def batches(log: Path) -> list[Path]:
    """Return the entries of one of Spark's logs, in order."""
    if not log.is_dir():
        return []
    # Spark writes under a hidden name, then renames.
    entries = [path for path in log.iterdir() if path.name.removesuffix(".compact").isdecimal()]
    return sorted(entries, key=lambda path: int(path.stem))


def rows(output: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Return all rows, in the order in which they were committed."""
    found: list[tuple[Any, ...]] = []
    for file in files(output):
        table = pq.ParquetFile(file).read(list(columns))
        found += zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    return found


def once_in_order(output: Path, arrivals: Arrivals) -> None:
    """Check that the committed rows are the messages that arrived, each once and in order."""
    found = rows(output, "queue", "offset", "message_id", "body")
    for queue in arrivals.queues:
        mine = [row for row in found if row[0] == queue]
        offsets = [offset for _, offset, _, _ in mine]
        assert offsets == sorted(set(offsets)), f"{queue}: offsets repeat or are out of order"
        numbers = [int(body) for *_, body in mine]
        missing = arrivals.each - len(set(numbers))
        assert missing == 0, f"{queue}: {missing} of {arrivals.each} messages are lost"
        assert numbers == list(range(arrivals.each)), (
            f"{queue}: {len(numbers)} rows, repeated or out of order"
        )
        assert [row[2] for row in mine] == [identity(queue, number) for number in numbers], "ids are mixed up"
    assert len(found) == arrivals.count, "there are rows of no queue"
