"""The format `amqp` in SQL: temporary views, tables of the catalogue, INSERT."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.spark.conftest import Audit, Message
from warren.pipeline.datasource import source_errors
from warren.pipeline.errors import PipelineError


@contextmanager
def defined(spark: SparkSession, kind: str, **options: str) -> Iterator[str]:
    """Create a view or table of the format, and drop it at the end.

    :param kind: `TEMPORARY VIEW` or `TABLE`
    """
    name = f"t{uuid.uuid4().hex}"
    spark.sql(
        f"CREATE {kind} {name} USING amqp OPTIONS ({', '.join(f'{key} {value!r}' for key, value in options.items())})"
    )
    try:
        yield name
    finally:
        spark.sql(f"DROP {kind.split()[-1]} {name}")


def bodies(spark: SparkSession, source: str) -> list[str]:
    return [
        row.body
        for row in spark.sql(f"SELECT CAST(body AS STRING) AS body FROM {source} ORDER BY body").collect()
    ]


def test_a_view_is_read_and_rows_are_inserted_into_it(spark: SparkSession, audit: Audit) -> None:
    audit.publish([Message(b"1"), Message(b"2")])
    with defined(spark, "TEMPORARY VIEW", url=audit.url, queue=audit.name) as view:
        assert bodies(spark, view) == ["1", "2"]
        spark.sql(f"INSERT INTO {view} (message_id, body) VALUES ('third', CAST('3' AS BINARY))")
        assert bodies(spark, view) == ["1", "2", "3"]
        rows = spark.sql(
            f"SELECT message_id, routing_key, delivery_mode FROM {view} WHERE body = X'33'"
        ).collect()
    assert [tuple(row) for row in rows] == [("third", audit.name, 2)]


def test_all_rows_of_one_view_are_inserted_into_another(spark: SparkSession, audit: Audit) -> None:
    """The columns that only reading produces are ignored, the options say where rows go."""
    audit.publish([Message(b"1"), Message(b"2")])
    with (
        defined(spark, "TEMPORARY VIEW", url=audit.url, queue=audit.name) as source,
        defined(spark, "TEMPORARY VIEW", url=audit.url, exchange="", routingKey=audit.name) as sink,
    ):
        spark.sql(f"INSERT INTO {sink} SELECT * FROM {source}")
        assert bodies(spark, source) == ["1", "1", "2", "2"]
        with (
            pytest.raises(PipelineError, match="no option 'exchange'; there are: url, queue, timeout"),
            source_errors(),
        ):
            spark.sql(f"SELECT * FROM {sink}").collect()


def test_a_table_of_the_catalogue_needs_its_options_in_each_statement(
    spark: SparkSession, audit: Audit
) -> None:
    audit.publish([Message(b"1")])
    options = f"WITH (url = '{audit.url}', queue = '{audit.name}')"
    with defined(spark, "TABLE", url=audit.url, queue=audit.name) as table:
        spark.sql(f"INSERT INTO {table} {options} (body) VALUES (CAST('2' AS BINARY))")
        assert bodies(spark, f"{table} {options}") == ["1", "2"]
        for statement in (f"SELECT * FROM {table}", f"INSERT INTO {table} (body) VALUES (X'33')"):
            with (
                pytest.raises(PipelineError, match=r"FROM t WITH \(url = .*CREATE TEMPORARY VIEW"),
                source_errors(),
            ):
                spark.sql(statement).collect()
        shown = spark.sql(f"SHOW CREATE TABLE {table}").collect()[0][0]
    assert "guest:guest" not in shown
    assert audit.ready() == 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": "q", "prefetch": "3"}, "has no option 'prefetch'"),
        ({"exchange": "e", "prefetch": "3"}, "has no option 'prefetch' for writing"),
    ],
)
@pytest.mark.parametrize("kind", ["TEMPORARY VIEW", "TABLE"])
def test_wrong_options_are_refused_when_it_is_created(
    spark: SparkSession, kind: str, options: dict[str, str], message: str
) -> None:
    with (
        pytest.raises(AnalysisException, match=message),
        defined(spark, kind, url="amqp://localhost", **options),
    ):
        pass


def test_a_queue_excludes_the_other_ways_to_name_a_destination(spark: SparkSession, audit: Audit) -> None:
    rows = spark.createDataFrame([(b"1",)], "body BINARY")
    with pytest.raises(PipelineError, match="leave exchange and routingKey out"), source_errors():
        rows.write.format("amqp").options(url=audit.url, queue=audit.name, exchange="").mode("append").save()
    assert audit.ready() == 0
