"""Patterns that keep messages in queues refuse a broker in memory that nobody chose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from warren.patterns import CatchAll, WorkQueue
from warren.sdk import App, Component, ConfigError

KEEPING: dict[str, Callable[[], Component]] = {
    "CatchAll": lambda: CatchAll("orders"),
    "WorkQueue": lambda: WorkQueue("renders"),
}


@pytest.mark.parametrize("name", KEEPING)
async def test_a_pattern_that_keeps_messages_refuses_a_broker_that_nobody_chose(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AMQP_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    app = App()
    app.include(KEEPING[name]())
    with pytest.raises(ConfigError, match=rf"^{name} would lose messages: no broker is named"):
        await app.start()
    chosen = App("memory://")
    chosen.include(KEEPING[name]())
    async with chosen:
        pass
