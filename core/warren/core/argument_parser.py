"""Command lines of commands that start fast: argparse, whose errors become one line and status 2."""

from __future__ import annotations

import argparse
from typing import NoReturn

from warren.core.errors import UsageError


class CommandParser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError` instead of printing the usage and ending the process."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")
