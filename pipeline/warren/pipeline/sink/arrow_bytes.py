"""Extraction of an Arrow column's values as bytes objects, without creating an Arrow scalar for each value."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Cells: TypeAlias = "list[bytes | None]"
"""Values of a column as bytes; None for null."""


def cells(column: Any) -> Cells:
    """Return the values of an Arrow column of strings or binaries as bytes objects, strings in UTF-8; None for null."""
    column = column.cast(pa.large_binary())
    if not len(column):
        return []
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    first = int(places[0])
    held = data[first : int(places[-1])].to_pybytes() if data is not None else b""
    edges = (places - first).tolist()
    values: Cells = [held[begin:end] for begin, end in pairwise(edges)]
    if column.null_count:
        for place in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[place] = None
    return values
