"""Files of a data folder by kind: the rows of the damage matrix, and the file of each kind that a seed picks."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random


class Choice(Enum):
    """Choice of one file among those of a kind, in the order of their names."""

    OLDEST = "oldest"
    MIDDLE = "middle"
    LAST = "last"
    ONLY = "only"
    """The one segment of a stream that has no other."""
    ANY = "any"


@dataclass(frozen=True)
class FileKind:
    """A row of the matrix: a name, and the files that it stands for."""

    name: str
    pattern: str
    """Regular expression for the whole path in the data folder."""
    choice: Choice = Choice.ANY

    def files(self, folder: Path) -> list[str]:
        """Return the paths in a data folder that match, by name."""
        return [path for path in data_files(folder) if re.fullmatch(self.pattern, path)]

    def pick(self, folder: Path, random: Random) -> str | None:
        """Return the path of the file to damage; None if the folder has no file of this kind."""
        files = self.files(folder)
        if self.pattern == STREAM_SEGMENT:
            files = _segments_of_a_stream(files, several=self.choice is not Choice.ONLY)
        if not files:
            return None
        if self.choice is Choice.OLDEST:
            return files[0]
        if self.choice is Choice.LAST:
            return files[-1]
        if self.choice is Choice.MIDDLE:
            return random.choice(files[1:-1]) if len(files) > 2 else None
        return random.choice(files)


LOG_SEGMENT = r"log/(\d{16})\.log"
STREAM_SEGMENT = r"streams/([0-9a-f]{16})-([0-9a-f]{16})\.stream"

KINDS: tuple[FileKind, ...] = (
    FileKind("definitions.db", r"definitions\.db"),
    FileKind("definitions.db-wal", r"definitions\.db-wal"),
    FileKind("definitions.journal", r"definitions\.journal"),
    FileKind("format", r"format"),
    FileKind("format.copy", r"format\.copy"),
    FileKind("manifest", r"manifest"),
    FileKind("synced", r"synced"),
    FileKind("lock", r"lock"),
    FileKind("log/clean", r"log/clean"),
    FileKind("log/generation", r"log/generation"),
    FileKind("oldest log segment", LOG_SEGMENT, Choice.OLDEST),
    FileKind("middle log segment", LOG_SEGMENT, Choice.MIDDLE),
    FileKind("last log segment", LOG_SEGMENT, Choice.LAST),
    FileKind("log index", r"log/\d{16}\.idx"),
    FileKind("oldest stream segment", STREAM_SEGMENT, Choice.OLDEST),
    FileKind("middle stream segment", STREAM_SEGMENT, Choice.MIDDLE),
    FileKind("last stream segment", STREAM_SEGMENT, Choice.LAST),
    FileKind("only stream segment", STREAM_SEGMENT, Choice.ONLY),
)
"""All kinds of files of a data folder."""


class UnknownFileError(AssertionError):
    """A data folder has a file that no row of the matrix stands for."""


def data_files(folder: Path) -> list[str]:
    """Return the paths of the regular files in a data folder, by name. Sockets are no data."""
    paths = sorted(path for path in folder.rglob("*") if stat.S_ISREG(path.lstat().st_mode))
    return [path.relative_to(folder).as_posix() for path in paths]


def _segments_of_a_stream(files: list[str], *, several: bool) -> list[str]:
    """Return the segments of the first stream that has several, or of the first that has one."""
    streams: dict[str, list[str]] = {}
    for path in files:
        streams.setdefault(path.partition("-")[0], []).append(path)
    return next((found for found in streams.values() if (len(found) > 1) == several), [])


def check_kinds(*folders: Path) -> None:
    """Check that every file of the folders is of a kind, and that every kind has a file in one of them.

    :raises UnknownFileError: a file is of no kind, or a kind has no file: the table above is out of date.
    """
    found = {path for folder in folders for path in data_files(folder)}
    unknown = sorted(path for path in found if not any(re.fullmatch(kind.pattern, path) for kind in KINDS))
    if unknown:
        raise UnknownFileError(f"files of no kind: {', '.join(unknown)}")
    absent = [kind.name for kind in KINDS if not any(kind.files(folder) for folder in folders)]
    if absent:
        raise UnknownFileError(f"kinds without a file: {', '.join(absent)}")
