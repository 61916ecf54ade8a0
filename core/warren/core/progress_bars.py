"""Progress bars on standard error, if that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from warren.core.text_escapes import escape_value

AddBar = Callable[[str, int | None], Callable[[int], None]]
"""Function that adds a bar, for a description and the total number if it is known. The function that it returns updates the
bar; it takes the number that is done."""


@contextmanager
def progress_bars() -> Iterator[AddBar]:
    """Show progress bars while the block runs. Standard error gets no output if it is no terminal."""
    # Imported here because no other output of a command needs it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:

        def add(description: str, total: int | None) -> Callable[[int], None]:
            task = shown.add_task(escape_value(description), total=total)
            return lambda done: shown.update(task, completed=done)

        yield add


__all__ = ["AddBar", "progress_bars"]
