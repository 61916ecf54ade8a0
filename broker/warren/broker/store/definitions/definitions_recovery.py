"""Recovery of the definitions: compares database and journal at the start, and restores one from the other."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.definitions.database_content import (
    DatabaseContent,
    read_content,
    snapshot_statements,
)
from warren.broker.store.definitions.definition_rows import BindingRow, ExchangeRow, QueueRow, UserRow
from warren.broker.store.definitions.definitions_journal import DefinitionsJournal, is_shortage
from warren.broker.store.definitions.generation_mark import read_generation_mark
from warren.broker.store.definitions.journal_format import JournalContent
from warren.broker.store.definitions.schema_migrations import (
    VERSION,
    configure,
    is_empty,
    migrate,
    run_migrations,
    unknown_version,
)
from warren.broker.store.errors import StoreError
from warren.core.operating_system.files import BINARY, sync_folder

logger: logging.Logger = logging.getLogger(__name__)

_REFUSALS: Final = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
    }
)
"""SQLite's error codes that say nothing about the content of the database."""
_FIRST_JOURNAL_VERSION: Final = 3
"""Format version of the data folder from which on it has a journal."""


class DefinitionsLost(StoreError):
    """The newest definitions of a data folder are lost: neither database nor journal has them.

    :param known: incarnations of the queues in the newest definitions that are left.
    """

    def __init__(self, text: str, known: set[int]) -> None:
        super().__init__(text)
        self.known = known


class OpenedDefinitions(NamedTuple):
    """Database and journal with the same content."""

    database: sqlite3.Connection
    journal: DefinitionsJournal
    generation: int
    loss: str
    """Description of what is lost, if the operator has accepted that; empty if nothing is."""


class _Source(enum.Enum):
    """Copy that has the newest definitions."""

    DATABASE = enum.auto()
    JOURNAL = enum.auto()
    NOTHING = enum.auto()
    """Neither of them: the definitions begin empty."""


class _Choice(NamedTuple):
    source: _Source
    database_problem: str = ""
    """Description of what was wrong with the database; empty if nothing was."""
    journal_problem: str = ""
    """Description of what was wrong with the journal; empty if nothing was."""
    loss: str = ""
    """Description of why newer definitions may be lost; empty if they are not."""


def open_definitions(folder: DataFolder, accept_data_loss: bool) -> OpenedDefinitions:
    """Open database and journal of a data folder; restore one from the other if it is damaged, missing or older.

    Both are created in a new folder. A restored copy is logged.

    :param accept_data_loss: True to go on with older definitions, or none, if the newest ones are lost. Files that
        cannot be used then get the suffix `.damaged`.
    :raises DefinitionsLost: the newest definitions are lost, and this was not accepted. No file was changed.
    :raises StoreError: the definitions are of an unknown version.
    :raises OSError: the disk failed.
    :raises sqlite3.Error: the database cannot be opened or written.
    """
    with contextlib.ExitStack() as undo:
        journal = DefinitionsJournal(folder)
        undo.callback(journal.close)
        read = journal.read()
        replayed = None
        if isinstance(read, JournalContent):
            try:
                replayed = _replay(read, journal.path)
            except sqlite3.Error as error:
                read = f"it cannot be replayed: {error}"
            else:
                undo.callback(replayed[0].close)
        copy = replayed[1] if replayed is not None else None
        mark = read_generation_mark(folder)
        database: sqlite3.Connection | None = None
        found: DatabaseContent | str | None = None
        if (
            isinstance(read, JournalContent)
            and not read.damage
            and copy is not None
            and copy.generation >= mark
        ):
            database, found = _read_database(folder.definitions)
        else:
            # Nothing replaces a damaged database now, so its files stay as they are.
            found = _find_problem_in_copy(folder.definitions)
            if found is None:
                database, found = _read_database(folder.definitions)
        if database is not None:
            undo.callback(database.close)
        choice = _choose(folder, found, read, copy, mark)
        if choice.loss and not accept_data_loss:
            left = {_Source.DATABASE: found, _Source.JOURNAL: copy, _Source.NOTHING: None}[choice.source]
            known = left.incarnations if isinstance(left, DatabaseContent) else set()
            raise DefinitionsLost(choice.loss, known)
        if choice.source is not _Source.DATABASE:
            if database is not None:
                database.close()
            if choice.loss:
                _move_aside(folder, isinstance(read, str))
            if choice.source is _Source.JOURNAL:
                assert replayed is not None
                _write_database(replayed[0], folder.definitions)
            database = _create_database(folder.definitions)
            undo.callback(database.close)
        assert database is not None
        if choice.loss:
            # No queue in the log counts as deleted, also if this start is killed.
            database.execute("UPDATE meta SET value = 1 WHERE name = 'next_incarnation'")
            # The mark in the log's folder is valid for the definitions from now on.
            database.execute("UPDATE meta SET value = MAX(value, ?) + 1 WHERE name = 'generation'", (mark,))
        content = read_content(database)
        _open_journal(journal, read, copy, content, database)
        _report(choice, content)
        undo.pop_all()
        if replayed is not None:
            replayed[0].close()
        return OpenedDefinitions(database, journal, content.generation, choice.loss)


def _choose(
    folder: DataFolder,
    database: DatabaseContent | str | None,
    read: JournalContent | str | None,
    journal: DatabaseContent | None,
    mark: int,
) -> _Choice:
    """Choose the copy with the newest definitions.

    The journal is written just before each commit. So a kill leaves it at most one transaction ahead of the database,
    and a power cut, because it is not synced with each transaction, any number of transactions behind.

    :param database: content of the database, the reason why it cannot be used, or None if it is missing or empty.
    :param read: the journal as it was read.
    :param journal: content of the database that the journal leads to; None if it cannot be used.
    :param mark: generation that the definitions have at least.
    """
    damage = read.damage if isinstance(read, JournalContent) else ""
    if isinstance(database, DatabaseContent):
        choice = _choose_by_generation(folder, database, read, journal, damage)
    elif journal is not None:
        reason = "it is missing or empty" if database is None else database
        choice = _Choice(_Source.JOURNAL, database_problem=reason)
        if damage:
            choice = choice._replace(
                loss=f"definitions.db cannot be used ({reason}), and definitions.journal is damaged ({damage})"
            )
    elif _is_new(folder, database, read):
        return _Choice(_Source.NOTHING)
    else:
        problems = [
            "it is missing or empty" if problem is None else str(problem) for problem in (database, read)
        ]
        if folder.stored_version < _FIRST_JOURNAL_VERSION:
            loss = f"definitions.db cannot be used ({problems[0]})"
        else:
            loss = (
                f"neither definitions.db ({problems[0]}) nor definitions.journal ({problems[1]}) can be used"
            )
        return _Choice(_Source.NOTHING, loss=loss)
    newest = journal if choice.source is _Source.JOURNAL else database
    assert isinstance(newest, DatabaseContent)
    if newest.generation < mark and not choice.loss:
        loss = (
            f"the definitions are older than the log: they are of generation {newest.generation}, "
            f"and the log has seen generation {mark}"
        )
        return choice._replace(loss=loss)
    return choice


def _choose_by_generation(
    folder: DataFolder,
    database: DatabaseContent,
    read: JournalContent | str | None,
    journal: DatabaseContent | None,
    damage: str,
) -> _Choice:
    """Choose between a readable database and a journal that may be unreadable, missing, older or newer.

    :param damage: description of the bytes behind the last intact record of the journal.
    """
    if journal is None:
        if isinstance(read, str):
            return _Choice(_Source.DATABASE, journal_problem=read)
        is_missing = folder.stored_version >= _FIRST_JOURNAL_VERSION
        return _Choice(_Source.DATABASE, journal_problem="it is missing" if is_missing else "")
    if database.generation > journal.generation:
        text = f"it ends with generation {journal.generation}, the database with {database.generation}"
        return _Choice(_Source.DATABASE, journal_problem=f"{text}: {damage}" if damage else text)
    if database.generation < journal.generation:
        text = f"it ends with generation {database.generation}, the journal with {journal.generation}"
        if damage:
            loss = f"definitions.db has lost changes ({text}), and definitions.journal is damaged ({damage})"
            return _Choice(_Source.JOURNAL, database_problem=text, loss=loss)
        if journal.generation == database.generation + 1:
            return _Choice(_Source.JOURNAL)
        return _Choice(_Source.JOURNAL, database_problem=text)
    if database != journal:
        return _Choice(_Source.JOURNAL, database_problem="its rows differ from those of the journal")
    return _Choice(_Source.DATABASE, journal_problem=damage)


def _is_new(folder: DataFolder, database: str | DatabaseContent | None, journal: object) -> bool:
    """Return whether the folder has no definitions because it is new, or was created by a start that was killed."""
    if database is not None or journal is not None or folder.stored_version >= _FIRST_JOURNAL_VERSION:
        return False
    try:
        return not any(name.endswith(".log") for name in folder.files.names(folder.log))
    except FileNotFoundError:
        return True


def _replay(content: JournalContent, path: str) -> tuple[sqlite3.Connection, DatabaseContent]:
    """Return a database in memory with the content that the journal leads to, and that content.

    :raises StoreError: the journal is of an unknown version.
    :raises sqlite3.Error: its statements cannot be executed.
    """
    if not 1 <= content.schema <= VERSION:
        raise unknown_version(path, content.schema)
    database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        run_migrations(database, 0, content.schema)
        database.execute("BEGIN")
        for transaction in content.transactions:
            for sql, rows in transaction:
                database.executemany(sql, rows)
        database.commit()
        migrate(database, path)
        return database, read_content(database)
    except BaseException:
        database.close()
        raise


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def _read_database(path: Path) -> tuple[sqlite3.Connection | None, DatabaseContent | str | None]:
    """Open the database, check it, bring it to the current version, and return it with its content.

    :return: instead of the content the reason why it cannot be used, or None if it is missing or empty; without a
        connection.
    """
    if not path.exists():
        return None, None
    database = None
    problem: str | None = None
    try:
        database = _connect(path)
        configure(database)
        checked = [row[0] for row in database.execute("PRAGMA quick_check(1)")]
        if checked != ["ok"]:
            problem = " ".join(str(checked[0]).split())
        elif not is_empty(database):
            migrate(database, str(path))
            content = read_content(database)
            problem = content.invalid_value()
            if not problem:
                return database, content
    except sqlite3.Error as error:
        if not _is_damage(error, path):
            if database is not None:
                database.close()
            raise
        problem = str(error)
    except BaseException:
        if database is not None:
            database.close()
        raise
    if database is not None:
        with contextlib.suppress(sqlite3.Error):
            database.close()
    return None, problem


def _find_problem_in_copy(path: Path) -> str | None:
    """Return why the database cannot be used, found on a copy of its files; None if it can be, or does not exist.

    SQLite removes the write-ahead file of a damaged database, or applies it, when it closes the database.
    """
    if not path.exists():
        return None
    found: DatabaseContent | str | None = None
    # Without room for a copy, the database itself shows the problem.
    with (
        contextlib.suppress(OSError),
        tempfile.TemporaryDirectory(prefix="warren-definitions-") as folder,
    ):
        for suffix in ("", "-wal"):
            if Path(f"{path}{suffix}").exists():
                shutil.copyfile(f"{path}{suffix}", f"{folder}/{path.name}{suffix}")
        database, found = _read_database(Path(folder, path.name))
        if database is not None:
            database.close()
    return found if isinstance(found, str) else None


def _is_damage(error: sqlite3.Error, path: Path) -> bool:
    """Return whether an error shows that the database's content is damaged, rather than that it may not be opened."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code == sqlite3.SQLITE_READONLY:
        # A flipped bit in its header declares it so.
        return os.access(path, os.W_OK)
    return code not in _REFUSALS


def _write_database(source: sqlite3.Connection, path: Path) -> None:
    """Replace the database by a copy of another one. A kill leaves the old database or the new one."""
    partial = path.with_name(path.name + ".new")
    partial.unlink(missing_ok=True)
    # SQLite would create it readable for everybody.
    handle = os.open(partial, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
    try:
        source.execute("VACUUM INTO ?", (str(partial),))
        os.fsync(handle)
    finally:
        os.close(handle)
    _remove_wal(path)
    partial.replace(path)
    sync_folder(path.parent)


def _create_database(path: Path) -> sqlite3.Connection:
    """Open the database, and create it with its tables if it does not exist."""
    if not path.exists():
        _remove_wal(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o600))
    database = _connect(path)
    try:
        configure(database)
        migrate(database, str(path))
    except BaseException:
        database.close()
        raise
    return database


def _remove_wal(path: Path) -> None:
    """Remove the files that SQLite would take for changes of the database."""
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _move_aside(folder: DataFolder, with_journal: bool) -> None:
    """Rename the files of the database, and the unusable journal, so that an expert can still read them."""
    for name in ("definitions.db", "definitions.db-wal"):
        if (folder.path / name).exists():
            (folder.path / name).replace(folder.path / f"{name}.damaged")
    if with_journal:
        path = str(folder.path / "definitions.journal")
        folder.files.rename(path, f"{path}.damaged")
    folder.files.sync_folder(str(folder.path))


def _open_journal(
    journal: DefinitionsJournal,
    read: JournalContent | str | None,
    copy: DatabaseContent | None,
    content: DatabaseContent,
    database: sqlite3.Connection,
) -> None:
    """Open the journal for appending, and write it anew if it does not lead to the database's content.

    :param copy: content that it leads to.
    """
    if isinstance(read, JournalContent) and read.schema == VERSION and copy == content:
        journal.resume(read)
        if not journal.is_large:
            return
    try:
        journal.replace(content.generation, snapshot_statements(database))
    except OSError as error:
        if not is_shortage(error) or not journal.is_large:
            raise
        journal.postpone_compaction()


def _report(choice: _Choice, content: DatabaseContent) -> None:
    """Log what was restored, and how much of it there is."""
    queues, exchanges = content.count(QueueRow), content.count(ExchangeRow)
    bindings, users = content.count(BindingRow), content.count(UserRow)
    if choice.loss:
        logger.error(
            "event=definitions.loss_accepted reason=%r queues=%d exchanges=%d bindings=%d users=%d",
            choice.loss,
            queues,
            exchanges,
            bindings,
            users,
        )
    elif choice.database_problem:
        logger.error(
            "event=definitions.database_rebuilt reason=%r queues=%d exchanges=%d bindings=%d users=%d",
            choice.database_problem,
            queues,
            exchanges,
            bindings,
            users,
        )
    elif choice.journal_problem:
        logger.warning(
            "event=definitions.journal_rebuilt reason=%r queues=%d exchanges=%d bindings=%d users=%d",
            choice.journal_problem,
            queues,
            exchanges,
            bindings,
            users,
        )
    elif choice.source is _Source.JOURNAL:
        # As a rule a kill between the write to the journal and the commit.
        logger.info("event=definitions.change_replayed generation=%d", content.generation)


__all__ = ["DefinitionsLost", "OpenedDefinitions", "open_definitions"]
