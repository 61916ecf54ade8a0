"""Argument parser of the commands that use argparse, not typer, to start fast; its errors are one line, status 2."""

from __future__ import annotations

import argparse
from typing import NoReturn

from warren.core.errors import UsageError


class CommandParser(argparse.ArgumentParser):
    """Argument parser that raises `UsageError` where argparse prints its usage and exits. Options cannot be abbreviated."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")
