"""Record the SQL statements of a pattern, and judge their plans: none may read the whole of a big table."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

MOST_PARAMETERS = 20
"""Largest number of parameters of a statement; lists are passed as one array or one JSON text."""
MOST_VALUES = 10_000
"""Largest number of values in such a list: the ordering keys whose retry times the relay remembers."""
MOST_ROWS = 1000
"""Largest number of rows that a statement returns."""

PARTIAL_INDEX = "ix_warren_outbox_refused_id"
"""Index of the rows whose retry is requested: a scan of it reads only those."""


@dataclass
class Recorder:
    """Statements that were executed.

    :ivar statements: each statement and the parameters of its executions; those of plain SQL are in the text.
    :ivar rows: largest number of rows that one statement has returned.
    """

    statements: dict[str, list[Sequence[Any]]] = field(default_factory=dict)
    rows: int = 0

    def add(self, statement: str, parameters: Sequence[Any]) -> None:
        if re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", statement):
            kept = self.statements.setdefault(statement, [])
            if len(kept) < 3:
                kept.append(parameters)

    def largest_parameters(self) -> tuple[int, int]:
        """Return the largest number of parameters of a statement, and of values in a list that is one parameter."""
        parameters = [each for kept in self.statements.values() for each in kept]
        lists = [len(json.loads(value)) for each in parameters for value in each if is_json_list(value)]
        lists += [len(value) for each in parameters for value in each if isinstance(value, list)]
        return max(map(len, parameters), default=0), max(lists, default=0)

    def check_sizes(self) -> None:
        """Check that no statement had more parameters, values or rows than is allowed."""
        number, values = self.largest_parameters()
        assert number <= MOST_PARAMETERS
        assert values <= MOST_VALUES
        assert self.rows <= MOST_ROWS


def is_json_list(value: object) -> bool:
    return isinstance(value, str) and value.startswith("[") and value.endswith("]")


@contextmanager
def recording(sessions: async_sessionmaker[Any]) -> Iterator[Recorder]:
    """Record the statements on the engine of the sessions."""
    recorder = Recorder()
    engine: AsyncEngine = sessions.kw["bind"]

    def begin(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool
    ) -> None:
        for each in parameters if many else [parameters]:
            recorder.add(statement, each)

    def end(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        # The drivers for asyncio read all rows at once, into this queue.
        recorder.rows = max(recorder.rows, len(getattr(cursor, "_rows", ())))

    event.listen(engine.sync_engine, "before_cursor_execute", begin)
    event.listen(engine.sync_engine, "after_cursor_execute", end)
    try:
        yield recorder
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", begin)
        event.remove(engine.sync_engine, "after_cursor_execute", end)


async def postgres_faults(
    fetch: Callable[..., Awaitable[Sequence[Any]]], recorder: Recorder, tables: Collection[str]
) -> list[str]:
    """Return the statements whose plan reads the whole of a table, with the plan.

    PostgreSQL may plan a statement for its parameters or, from the sixth execution on, for any parameters: both plans
    are judged.

    :param fetch: executes a statement on one connection of asyncpg and returns its rows.
    """
    faults = []
    await fetch("SET plan_cache_mode = force_generic_plan")
    for statement, kept in recorder.statements.items():
        plans = [await fetch(f"EXPLAIN (FORMAT JSON) {statement}", *parameters) for parameters in kept]
        await fetch(f"PREPARE generic AS {statement}")
        nulls = ", ".join(["NULL"] * len(kept[0]))
        plans.append(await fetch(f"EXPLAIN (FORMAT JSON) EXECUTE generic{f'({nulls})' if nulls else ''}"))
        await fetch("DEALLOCATE generic")
        for ((plan,),) in plans:
            problems = list(_problems(json.loads(plan)[0]["Plan"], frozenset(tables), is_limited=False))
            if problems:
                faults.append(f"{statement}\n{problems}\n{plan}")
                break
    return faults


def _problems(node: dict[str, Any], tables: frozenset[str], *, is_limited: bool) -> Iterator[str]:
    kind, table = node["Node Type"], node.get("Relation Name")
    if table in tables:
        if kind == "Seq Scan":
            yield f"Seq Scan of {table}"
        # In the order of an index, up to a limit, a scan ends early, unless it passes over rows.
        unbounded = kind.startswith("Index") and "Index Cond" not in node
        if unbounded and ("Filter" in node or not is_limited) and node["Index Name"] != PARTIAL_INDEX:
            yield f"whole {kind} of {table}"
    for name in ("Filter", "Join Filter"):
        # A hashed one is executed once, any other once for each row.
        if re.search(r"(?<!hashed )SubPlan", node.get(name, "")):
            yield f"quadratic {node[name]}"
    for child in node.get("Plans", ()):
        yield from _problems(child, tables, is_limited=is_limited or kind == "Limit")


def sqlite_faults(database: sqlite3.Connection, recorder: Recorder, tables: Collection[str]) -> list[str]:
    """Return the statements whose plan reads the whole of a table, with the plan."""
    faults = []
    for statement, kept in recorder.statements.items():
        plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {statement}", kept[0])]
        scans = [line for line in plan if line.startswith("SCAN") and line.split()[1] in tables]
        scans = [line for line in scans if not line.endswith(f"USING INDEX {PARTIAL_INDEX}")]
        sorts = [line for line in plan if "TEMP B-TREE FOR ORDER BY" in line]
        ends_early = "LIMIT" in statement and "WHERE" not in statement and not sorts
        if scans and not ends_early:
            faults.append(f"{statement}\n" + "\n".join(plan))
    return faults
