"""Running maximum over long sequences, computed in chunks so that one sequence is spread over several tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHUNK_SIZE = 10_000
"""Positions of a sequence that one task sorts."""


def with_maximum_before(
    rows: DataFrame, group: Sequence[str], place: str, value: str, name: str, chunk_size: int = CHUNK_SIZE
) -> DataFrame:
    """Add a column with the largest value of all earlier rows of the sequence; null for the first row.

    Each chunk of a sequence is sorted separately, and receives the largest value of all earlier chunks, of which there
    is one row each. A queue that holds most messages is thereby spread over the tasks as well.

    :param group: columns without nulls; each combination of values is a sequence
    :param place: integer column with the position of a row in its sequence
    :param value: column of any ordered type; nulls are ignored
    :param name: name of the new column
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
