"""The broker in an App's own process: assumed without a URL, chosen by `memory://` or `embedded:FOLDER`."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from warren.broker import VirtualClock
from warren.sdk import App, ConfigError, Queue
from warren.testing import Warren

ASSUMED = "event=embedded_broker.assumed"


@pytest.fixture(autouse=True)
def _no_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AMQP_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "warren.sdk")
    return caplog


class Durable:
    """A component whose promise depends on a broker that keeps messages."""

    requires_durable_broker = True

    def register(self, app: App) -> None:
        pass

    async def on_start(self) -> None:
        pass

    async def on_stop(self) -> None:
        pass


async def test_an_app_that_nobody_gave_a_broker_warns_of_the_consequences(
    warnings: pytest.LogCaptureFixture,
) -> None:
    async with App():
        pass
    (line,) = [record.getMessage() for record in warnings.records]
    assert line.startswith(ASSUMED)
    assert "AMQP_URL" in line
    assert "lost when this process ends" in line
    assert "no other process" in line
    assert "memory://" in line


@pytest.mark.parametrize("by_environment", [False, True])
async def test_a_broker_in_memory_that_was_chosen_is_no_warning(
    by_environment: bool, warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_environment:
        monkeypatch.setenv("AMQP_URL", "memory://")
    app = App() if by_environment else App("memory://")
    app.include(Durable())
    app.declare(Queue("jobs"))
    for number in range(2):
        async with app:
            assert await app.get("jobs") is None, number
            await app.publish(b"1", key="jobs")
    assert warnings.records == []


async def test_the_test_kit_chooses_the_broker_in_memory(warnings: pytest.LogCaptureFixture) -> None:
    app, warren = App(), Warren()
    warren.patience = 60.0
    app.include(Durable())
    async with warren.running(app):
        pass
    assert warnings.records == []


async def test_an_app_on_a_virtual_clock_is_a_test(warnings: pytest.LogCaptureFixture) -> None:
    app = App(clock=VirtualClock())
    app.include(Durable())
    async with app:
        pass
    assert warnings.records == []


async def test_a_durable_component_refuses_a_broker_that_nobody_chose() -> None:
    app = App()
    app.include(Durable())
    with pytest.raises(ConfigError, match=r"^Durable .*AMQP_URL.*memory://") as caught:
        await app.start()
    assert "\n" not in str(caught.value)
    app.use_broker("memory://")
    async with app:
        pass


def test_an_empty_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQP_URL", "")
    with pytest.raises(ConfigError, match=r"^AMQP_URL is empty"):
        App()
    assert App("amqp://a").url == "amqp://a"


def test_an_empty_url_is_an_error() -> None:
    with pytest.raises(ConfigError, match="URL is empty"):
        App("")


@pytest.mark.parametrize("url", ["memory://host", "memory:folder", "embedded://folder", "embedded:a?b=c"])
def test_a_url_of_an_embedded_broker_with_another_form_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"memory://|embedded:"):
        App(url)


async def test_a_broker_with_a_folder_keeps_messages_between_runs(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    app = App(f"embedded:{tmp_path}/a folder")
    app.include(Durable())
    app.declare(Queue("jobs"))
    async with app:
        await app.publish(b"1", key="jobs")
    async with app:
        message = await app.get("jobs")
        assert message is not None
        assert message.body == b"1"
        await message.ack()
    assert warnings.records == []


async def test_a_folder_that_another_broker_uses_is_an_error_of_one_line(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}"
    async with App(url):
        with pytest.raises(ConfigError, match="in use by another broker") as caught:
            await App(url).start()
    assert "\n" not in str(caught.value)


async def test_without_a_folder_it_uses_the_default_one_of_warren_broker(tmp_path: Path) -> None:
    async with App("embedded:"):
        assert await asyncio.to_thread((tmp_path / "share" / "warren" / "broker" / "format").is_file)
