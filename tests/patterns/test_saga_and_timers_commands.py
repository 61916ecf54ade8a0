"""`warren saga` and `warren timers` on a store that an App has written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.patterns.checkout_saga import Checkout, CheckoutState
from tests.patterns.conftest import NewApp
from warren.cli.saga import main as saga
from warren.cli.timers import main as timers
from warren.core.errors import UsageError
from warren.patterns import DateSchedule, IntervalSchedule, SqliteStore, Timers
from warren.sdk import Command

Call = Callable[[Sequence[str]], int]
Capture = pytest.CaptureFixture[str]


async def test_sagas_are_listed_and_shown(
    new_app: NewApp, name: str, tmp_path: Path, capsys: Capture
) -> None:
    path = str(tmp_path / "store.sqlite")
    checkout = Checkout(new_app(), SqliteStore(path), name)
    checkout.handle_commands()
    async with checkout.app as app:
        for order in ("41", "42"):
            await app.publish(checkout.placed(order_id=order))
        await app.publish(checkout.charged(order_id="42"))
        await checkout.wait_for_state("41", CheckoutState.PAYING)
        await checkout.wait_for_state("42", CheckoutState.SHIPPING)
    assert await in_thread(saga, ["ls", name, "--store", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[2:] for line in lines) == [["paying", "41"], ["shipping", "42"]]
    await in_thread(saga, ["ls", name, "--store", path, "--state", "paying", "--json"])
    assert [found["key"] for found in json.loads(capsys.readouterr().out)] == ["41"]
    await in_thread(saga, ["ls", name, "--store", path, "--owing"])
    assert capsys.readouterr().out == ""
    await in_thread(saga, ["ls", name, "--store", path, "--limit", "1"])
    assert capsys.readouterr().out.endswith("and 1 more; show them with --limit 2\n")
    assert await in_thread(saga, ["show", name, "42", "--store", path]) == 0
    assert "charged -> shipping, sent ship" in capsys.readouterr().out
    with pytest.raises(UsageError, match="this store has no saga"):
        await in_thread(saga, ["show", name, "43", "--store", path])


async def test_timers_are_listed_and_cancelled(tmp_path: Path, capsys: Capture) -> None:
    class Ring(Command, queue="bells"):
        pass

    path = str(tmp_path / "store.sqlite")
    async with SqliteStore(path) as store:
        kept = Timers("house", store=store, sends=[Ring])
        await kept.put(IntervalSchedule("watch", timedelta(hours=1), Ring()))
        await kept.put(DateSchedule("tea", datetime.now(UTC) + timedelta(minutes=5), Ring()))
    assert await in_thread(timers, ["ls", "house", "--store", path]) == 0
    assert [line.split()[2:4] for line in capsys.readouterr().out.splitlines()] == [
        ["tea", "once"],
        ["watch", "every"],
    ]
    assert await in_thread(timers, ["cancel", "house", "tea", "--store", path]) == 0
    assert await in_thread(timers, ["cancel", "house", "tea", "--store", path]) == 1
    assert "there is no timer 'tea'" in capsys.readouterr().err
    await in_thread(timers, ["ls", "house", "--store", path, "--json"])
    assert [found["name"] for found in json.loads(capsys.readouterr().out)] == ["watch"]


@pytest.mark.parametrize("address", ["missing.sqlite", "mysql://somewhere/there"])
def test_a_missing_store_raises_a_usage_error(address: str) -> None:
    with pytest.raises(UsageError, match="SQLite file"):
        saga(["ls", "checkout", "--store", address])
    with pytest.raises(UsageError, match="Missing option '--store'"):
        timers(["ls", "house"])


def test_an_unavailable_store_exits_with_status_74(capsys: Capture) -> None:
    assert saga(["ls", "checkout", "--store", "redis://127.0.0.1:9/0"]) == 74
    assert "did not answer" in capsys.readouterr().err


async def in_thread(command: Call, words: list[str]) -> int:
    """Run a command in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(command, words)
