"""`warren broker`: runs the broker in the foreground until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from warren.broker.broker import Broker
from warren.broker.config import BrokerConfig
from warren.broker.management.boot import DefinitionsError
from warren.broker.model.compat import COMPAT
from warren.broker.server import ListenError
from warren.broker.store.errors import StoreError
from warren.broker.tls import TlsError
from warren.command import Exit, UsageError


def main(arguments: Sequence[str]) -> int:
    """Run a broker. Prints one line on standard output when it accepts connections; logs to standard error."""
    options = parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        config = BrokerConfig(
            data_dir=options.data_dir, host=options.host, port=options.port, compat=options.compat
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    raise_file_limit()
    return asyncio.run(run(config))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warren broker", description="Run an AMQP 0-9-1 broker in the foreground."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=5672, help="port to listen at, 0 for any free one (default: %(default)s)"
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="where durable queues and messages are kept; without it they live in memory and end with the broker",
    )
    parser.add_argument(
        "--compat",
        choices=tuple(COMPAT),
        default="4",
        help="the RabbitMQ whose reply codes and texts are given where versions differ (default: %(default)s)",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="default: %(default)s",
    )
    return parser


async def run(config: BrokerConfig) -> int:
    broker = Broker(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await broker.start()
    except StoreError as error:
        print(f"warren broker: {error}", file=sys.stderr)
        return error.status
    except (ListenError, TlsError, DefinitionsError) as error:
        raise UsageError(str(error)) from None
    print(f"warren broker ready: {broker.bound[0]}", flush=True)
    stopping = asyncio.ensure_future(stop.wait())
    assert broker.failure is not None
    await asyncio.wait((stopping, broker.failure), return_when=asyncio.FIRST_COMPLETED)
    if broker.failure.done():
        # Nothing can be saved any more, and waiting for the disk could last for ever: what was refused is known, and the
        # log on the disk is as whole as it will be.
        print(f"warren broker: {broker.failure.result()}", file=sys.stderr, flush=True)
        await asyncio.sleep(0)
        os._exit(Exit.IO)
    stopping.cancel()
    try:
        await broker.stop()
    except StoreError as error:
        print(f"warren broker: {error}", file=sys.stderr)
        return error.status
    return Exit.DONE


def raise_file_limit() -> None:
    """Each connection takes a file; the soft limit is often 1,024, the hard one is what the system means."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems refuse the hard limit itself; the soft one then stands.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
