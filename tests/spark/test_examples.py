"""Examples of the pipeline in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.conftest import Audit, Message
from tests.spark.test_stream_source import declare_stream
from tests.support.example_programs import EXAMPLES, run
from warren.pipeline.query_restart import MAX_STARTS, WORKER_TIMEOUT

# Each program starts a Java machine of its own.
pytestmark = pytest.mark.slow


def test_browsing_counts_and_shows_messages_and_leaves_them_in_the_queue(audit: Audit) -> None:
    audit.publish([Message(f"order {number}".encode()) for number in range(5)])
    ran = run("spark_read", audit.name, AMQP_URL=audit.url)
    assert ran.returncode == 0, ran.stderr
    shown = [f"{number} {audit.name} order {number}" for number in range(3)]
    assert ran.stdout.splitlines() == ["messages: 5", *shown], ran.stderr
    assert audit.ready() == 5


def test_a_stream_is_counted_and_its_last_messages_shown(amqp_url: str) -> None:
    stream = declare_stream(amqp_url)
    stream.publish([Message(b'{"number": %d, "paid": true}' % number) for number in range(10)])
    ran = run("spark_stream", stream.name, AMQP_URL=amqp_url)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"{stream.name} 10", "9 9 True", "8 8 True", "7 7 True"], ran.stderr


def test_written_messages_are_read_through_a_spool(audit: Audit, tmp_path: Path) -> None:
    both = tmp_path / "both.py"  # in one process, which starts Java once
    names = ("spark_write", "spark_spool")
    programs = [[str(EXAMPLES / f"{name}.py"), audit.name, str(tmp_path)] for name in names]
    both.write_text(
        "import runpy, sys\n"
        f"for sys.argv in {programs}:\n"
        f"    for start in range({MAX_STARTS}):\n"
        "        try:\n"
        "            runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "            break\n"
        "        except Exception as error:\n"
        # Spark gave up on a Python worker that was slow to start.
        f"            if {WORKER_TIMEOUT!r} not in str(error) or start == {MAX_STARTS - 1}:\n"
        "                raise\n"
    )
    ran = run(both, AMQP_URL=audit.url)
    assert ran.returncode == 0, ran.stderr
    spent = [("ada", 2, 42), ("bob", 1, 5), ("eve", 1, 7)]
    assert ran.stdout.splitlines() == [
        f'customer_summary {{"customer":"{name}","orders":{orders},"spent":{price}}}'
        for name, orders, price in spent
    ], ran.stderr
    assert audit.ready() == 0
