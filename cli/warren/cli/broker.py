"""`warren broker`: run the broker in the foreground until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

from warren.broker.access.login_backends import AccessConfigError
from warren.broker.broker import Broker
from warren.broker.configuration.config import BrokerConfig
from warren.broker.configuration.config_loader import format_config, load_config
from warren.broker.configuration.setting_sources import DEFAULT, RunConfig
from warren.broker.connection.event_loop import new_event_loop
from warren.broker.connection.listener import ListenError
from warren.broker.connection.tls import TlsError
from warren.broker.management.boot_definitions import DefinitionsError
from warren.broker.model.capture.event_stream import CaptureError
from warren.broker.span_export import SpanExportError
from warren.broker.store.errors import StoreError
from warren.broker.store.log.switch_interval import SWITCH_INTERVAL
from warren.cli.garbage_collection import collect_less_often, collect_when_due
from warren.core.command_output import OutputClosed, OutputFailed, write_error, write_line, write_lines
from warren.core.errors import ExitStatus, UsageError, missing_extra_error
from warren.core.log_output import write_logs
from warren.core.operating_system.descriptors import raise_descriptor_limit
from warren.core.operating_system.signals import END_SIGNALS, ignore_signals, on_signal

logger = logging.getLogger(__name__)

HTTP_PACKAGES = ("aiohttp", "regex")
"""Packages that the HTTP API and the Prometheus endpoint need."""


def main(arguments: Sequence[str]) -> int:
    """Run a broker until it is stopped, and return the exit status.

    Print one line on standard output when it accepts connections; log to standard error.
    """
    config, print_only = load_config(arguments, os.environ)
    if print_only:
        write_lines(format_config(config))
        return ExitStatus.SUCCESS
    write_logs(config.log.log_level, as_json=config.log.log_json)
    for source, names in config.ignored.items():
        if names:
            logger.warning(
                "event=configuration.settings_ignored source=%s names=%s", source, ", ".join(names)
            )
    raise_descriptor_limit()
    collect_less_often()
    SWITCH_INTERVAL.is_allowed = True
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run(config))


async def run(settings: RunConfig) -> int:
    config = _with_installed_packages(settings)
    broker = Broker(config)
    stop = asyncio.Event()
    broker.on_shutdown = stop.set
    loop = asyncio.get_running_loop()
    for number in END_SIGNALS:
        on_signal(loop, number, stop.set)
    try:
        await broker.start()
    except StoreError as error:
        write_error(f"warren broker: {error}{_folder_hint(settings, error)}")
        return error.status
    except (
        AccessConfigError,
        ListenError,
        TlsError,
        DefinitionsError,
        CaptureError,
        SpanExportError,
    ) as error:
        raise UsageError(str(error)) from None
    _log_storage(settings)
    try:
        write_line(f"warren broker ready: {broker.bound_addresses[0]}", flush=True)
    except (OutputClosed, OutputFailed):
        # Whoever started it waits for this line, which nobody can read.
        await broker.stop()
        raise
    stopping = asyncio.ensure_future(stop.wait())
    collecting = asyncio.ensure_future(collect_when_due(config.memory_bytes))
    assert broker.failure is not None
    await asyncio.wait((stopping, broker.failure), return_when=asyncio.FIRST_COMPLETED)
    if broker.failure.done():
        # Nothing can be stored any more, and waiting for the disk could last forever. Publishers have been refused, and
        # the log on disk is as complete as possible.
        write_error(f"warren broker: {broker.failure.result()}")
        await asyncio.sleep(0)
        os._exit(ExitStatus.IO)
    stopping.cancel()
    collecting.cancel()
    try:
        await broker.stop()
    except StoreError as error:
        write_error(f"warren broker: {error}")
        return error.status
    finally:
        # A signal mask does not apply to other threads, so end them first.
        await loop.shutdown_default_executor()
        # The closing event loop would restore the default action, and a second signal kill the process.
        ignore_signals(loop, END_SIGNALS)
    return ExitStatus.SUCCESS


def _with_installed_packages(settings: RunConfig) -> BrokerConfig:
    """Return the configuration; without what needs HTTP if its packages are not installed, unless it was asked for.

    :raises UsageError: if it was asked for, with the extra to install.
    """
    config = settings.broker
    if all(find_spec(package) for package in HTTP_PACKAGES):
        return config
    if config.management_port is not None:
        missing = missing_extra_error("management", "the HTTP API (management_port)")
        if "management_port" in settings.origins:
            raise missing
        logger.info("event=http_api.skipped advice=%r", str(missing))
    if config.prometheus_port is not None:
        missing = missing_extra_error("management", "the Prometheus endpoint (prometheus_port)")
        if "prometheus_port" in settings.origins:
            raise missing
        logger.info("event=prometheus.skipped advice=%r", str(missing))
    return replace(config, management_port=None, prometheus_port=None)


def _log_storage(settings: RunConfig) -> None:
    if settings.broker.data_dir is None:
        logger.warning(
            "event=broker.memory_chosen consequence=%s",
            "there is no data folder: all messages and definitions are lost when this broker stops",
        )
    else:
        logger.info(
            "event=broker.data_folder_opened data_dir=%s origin=%s",
            settings.broker.data_dir,
            settings.origins.get("data_dir", DEFAULT),
        )


def _folder_hint(settings: RunConfig, error: StoreError) -> str:
    """Return the end of an error text for a default data folder that cannot be used: the options that avoid it."""
    chosen = "data_dir" in settings.origins or "--data-dir" in str(error)
    return (
        "" if chosen or error.status != ExitStatus.USAGE else "; choose one with --data-dir, or --in-memory"
    )
