"""What a streaming query has committed to its Parquet folder: the files that Spark's log of the sink names, in its order.

A file that a killed task left beside them is not part of the output (Spark's file sink, `_spark_metadata`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq


def files(output: Path) -> list[Path]:
    """The committed files, batch by batch, in each batch task by task."""
    log = output / "_spark_metadata"
    found: list[Path] = []
    for batch in batches(log):
        _, *entries = batch.read_text().splitlines()
        if batch.suffix == ".compact":
            # It repeats what all before it said.
            found = []
        found += [Path(unquote(urlsplit(json.loads(entry)["path"]).path)) for entry in entries]
    return found


def batches(log: Path) -> list[Path]:
    """The entries of one of Spark's logs, in order."""
    if not log.is_dir():
        return []
    # Spark writes under a hidden name, then renames.
    entries = [path for path in log.iterdir() if path.name.removesuffix(".compact").isdecimal()]
    return sorted(entries, key=lambda path: int(path.stem))


def rows(output: Path, *columns: str) -> list[tuple[Any, ...]]:
    """All rows, in the order in which they were committed."""
    found: list[tuple[Any, ...]] = []
    for file in files(output):
        table = pq.ParquetFile(file).read(list(columns))
        found += zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    return found
