"""`warren broker`: runs the broker in the foreground until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence

from warren.broker.broker import Broker
from warren.broker.configuration.config import BrokerConfig
from warren.broker.configuration.load import load, printed
from warren.broker.connection.event_loop import new_event_loop
from warren.broker.connection.listener import ListenError
from warren.broker.connection.tls import TlsError
from warren.broker.management.boot_definitions import DefinitionsError
from warren.broker.model.capture.event_stream import CaptureError
from warren.broker.store.errors import StoreError
from warren.core.errors import ExitStatus, UsageError
from warren.core.log_output import write_logs

logger = logging.getLogger(__name__)

STOP = (signal.SIGTERM, signal.SIGINT)


def main(arguments: Sequence[str]) -> int:
    """Run a broker. Prints one line on standard output when it accepts connections; logs to standard error."""
    told, only_printed = load(arguments, os.environ)
    if only_printed:
        print(printed(told))
        return ExitStatus.SUCCESS
    write_logs(told.log.log_level, as_json=told.log.log_json)
    for source, names in told.ignored.items():
        if names:
            logger.warning(
                "event=configuration.settings_ignored source=%s names=%s", source, ", ".join(names)
            )
    raise_file_limit()
    collect_less_often()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run(told.broker))


async def run(config: BrokerConfig) -> int:
    broker = Broker(config)
    stop = asyncio.Event()
    broker.on_shutdown = stop.set
    loop = asyncio.get_running_loop()
    for number in STOP:
        loop.add_signal_handler(number, stop.set)
    try:
        await broker.start()
    except StoreError as error:
        print(f"warren broker: {error}", file=sys.stderr)
        return error.status
    except (ListenError, TlsError, DefinitionsError, CaptureError) as error:
        raise UsageError(str(error)) from None
    print(f"warren broker ready: {broker.bound_addresses[0]}", flush=True)
    stopping = asyncio.ensure_future(stop.wait())
    assert broker.failure is not None
    await asyncio.wait((stopping, broker.failure), return_when=asyncio.FIRST_COMPLETED)
    if broker.failure.done():
        # Nothing can be saved any more, and waiting for the disk could last for ever: what was refused is known, and the
        # log on the disk is as whole as it will be.
        print(f"warren broker: {broker.failure.result()}", file=sys.stderr, flush=True)
        await asyncio.sleep(0)
        os._exit(ExitStatus.IO)
    stopping.cancel()
    try:
        await broker.stop()
    except StoreError as error:
        print(f"warren broker: {error}", file=sys.stderr)
        return error.status
    finally:
        await ignore_signals(loop)
    return ExitStatus.SUCCESS


async def ignore_signals(loop: asyncio.AbstractEventLoop) -> None:
    """It ends, with its own status: a loop that closes would give the signals back what they do by default, kill."""
    # Of another thread the mask below is not.
    await loop.shutdown_default_executor()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    for number in STOP:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def collect_less_often() -> None:
    """Messages come and go by the hundred thousand and are in no cycles: with the interpreter's thresholds, looking for
    cycles among them took a fifth of the broker's time. What is here by now stays."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def raise_file_limit() -> None:
    """Each connection takes a file; the soft limit is often 1,024, the hard one is what the system means."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems refuse the hard limit itself; the soft one then stands.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
