"""Running maximum over a long sequence of rows, computed in chunks so that several tasks share the work.

A Spark window function sorts each partition in a single task, which is too slow if one queue has most of the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHUNK_SIZE = 10_000
"""Number of consecutive positions in a sequence whose rows are sorted together, in one task."""


def with_maximum_before(
    rows: DataFrame, group: Sequence[str], place: str, value: str, name: str, chunk_size: int = CHUNK_SIZE
) -> DataFrame:
    """Add a column with the largest value among all rows before a row in its sequence; null for the first row.

    Each chunk of a sequence is sorted separately. The maximum of the chunks before it is then added, for which one row
    per chunk suffices.

    :param group: names of columns without nulls; rows with the same values form a sequence
    :param place: name of an integer column with the position of a row in its sequence
    :param value: name of a column of any ordered type; nulls are ignored
    :param name: name of the new column
    :param chunk_size: number of consecutive positions whose rows are sorted together, in one task
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
