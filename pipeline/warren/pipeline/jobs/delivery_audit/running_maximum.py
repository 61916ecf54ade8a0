"""For each row of a sequence the largest value of all rows before it, found in pieces: a long sequence is no single task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHUNK_SIZE = 10_000
"""So many numbers of a sequence are sorted by one task."""


def with_maximum_before(
    rows: DataFrame, group: Sequence[str], place: str, value: str, name: str, chunk_size: int = CHUNK_SIZE
) -> DataFrame:
    """The rows with one column more, null for the first of its group.

    Each piece of a sequence is sorted for itself, and is told the largest value of all pieces before it; of those there is
    one row a piece. So a queue that has everything is spread over the tasks as well.

    :param group: columns without nulls: each combination is a sequence
    :param place: an integer: where a row stands in its sequence
    :param value: of any type that has an order; nulls do not count
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = [*group, "piece"]
    chunked = rows.withColumn("piece", F.floor(F.col(place) / chunk_size))
    earlier = Window.partitionBy(*group).orderBy("piece").rowsBetween(Window.unboundedPreceding, -1)
    carried = (
        chunked.groupBy(*keys)
        .agg(F.max(value).alias("best"))
        .select(*keys, F.max("best").over(earlier).alias("carried"))
    )
    before = Window.partitionBy(*keys).orderBy(place).rowsBetween(Window.unboundedPreceding, -1)
    return (
        chunked.withColumn("within", F.max(value).over(before))
        .join(carried, keys)
        .withColumn(name, F.greatest("within", "carried"))
        .drop("piece", "within", "carried")
    )
