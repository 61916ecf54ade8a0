"""`warren bench`: measure throughput, latency and processor time of a broker."""

from __future__ import annotations

import os
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence

from warren.broker.bench import processor_time
from warren.broker.bench.load_options import MIN_TIMESTAMPED_SIZE, Load
from warren.broker.bench.load_topology import LoadTopology
from warren.broker.bench.measurement import BenchError, measure
from warren.broker.bench.report import Report
from warren.core.argument_parser import CommandParser
from warren.core.blocking_connection import ClosedByBroker
from warren.core.command_output import write_error, write_lines
from warren.core.errors import ExitStatus, UsageError
from warren.wire.amqp_url import AmqpUrl, parse_url

DESCRIPTION = """Measure an AMQP 0-9-1 broker with publisher and consumer processes, each with one connection, through
one queue or many. Verify that every message is delivered once and in order."""

MAX_SIZE = 128 * 2**20
"""Size in bytes of the largest body that `warren bench` sends."""
MAX_QUEUES = 100_000
"""Largest number of queues that one run of `warren bench` may use."""
MAX_MESSAGES = 200_000
"""Largest number of different messages that each publisher process encodes before the run."""
MAX_MESSAGE_BYTES = 1 << 30
"""Largest total size, in bytes, of the messages that each publisher process encodes before the run."""

MIXED = {
    "distinct": True,
    "size": (50, 2000),
    "publishers": 4,
    "consumers": 4,
    "window": 200,
    "prefetch": 100,
    "ack_every": 1,
    "exchange": "topic",
    "queues": 4,
    "keys": 25,
}
"""Values of the options that `--mixed` sets, where they are not given."""


def main(arguments: Sequence[str]) -> int:
    """Measure a broker. Return 0, or 1 if messages were lost, duplicated or out of order.

    :raises UsageError: if an option, the URL, the login or the arguments of an existing queue are wrong
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.mixed:
        parser.set_defaults(**MIXED)
        options = parser.parse_args(arguments)
    url = _url(options.url)
    _check(options)
    load = Load(
        url=options.url,
        queue=options.queue or f"warren-bench-{os.getpid()}",
        publishers=options.publishers,
        consumers=options.consumers,
        size=options.size[0],
        max_size=options.size[1],
        distinct=options.distinct,
        single_writes=options.single_writes,
        window=0 if options.no_confirms else options.window,
        prefetch=options.prefetch,
        ack_every=0 if options.auto_ack else _ack_every(options),
        persistent=options.persistent,
        seconds=options.seconds,
        warmup=options.warmup,
        rate=options.rate,
        queue_type=options.queue_type,
        exchange=_exchange(options),
        queues=options.queues,
        fan_out=options.fan_out,
        keys=options.keys,
        bindings=options.bindings,
        headers=options.headers,
        priorities=options.priorities,
        arguments=tuple(map(_argument, options.queue_argument)),
        uses_get=options.get,
        run_id=time.time_ns() // 1_000_000 & 0x7FF,
    )
    try:
        with LoadTopology(url, load, keep=options.queue is not None):
            report = Report.of(load, measure(load, options.pid))
    except (ClosedByBroker, BenchError) as error:
        if error.is_client_error:
            raise UsageError(str(error)) from None
        return _io_error(f"{url.masked}: {error}")
    except OSError as error:
        return _io_error(f"no AMQP broker answers at {url.masked}: {error}")
    write_lines(report.as_json() if options.json else report.as_text(load))
    return ExitStatus.SUCCESS if report.verdict.holds else ExitStatus.FAILED


def _io_error(text: str) -> int:
    write_error(f"warren bench: {text}")
    return ExitStatus.IO


def _parser() -> CommandParser:
    parser = CommandParser("warren bench", DESCRIPTION)
    add = parser.add_argument
    add("--url", default="amqp://127.0.0.1:5672", help="URL of the broker (default: %(default)s)")
    add(
        "--mixed",
        action="store_true",
        help="load like that of applications, with no two messages alike: --distinct --size 50-2000 --publishers 4 "
        "--consumers 4 --window 200 --prefetch 100 --ack-every 1 --exchange topic --queues 4 --keys 25; each of these "
        "may be given another value",
    )
    add("--publishers", type=int, default=1, metavar="N", help="default: %(default)s")
    add("--consumers", type=int, default=1, metavar="N", help="default: %(default)s")
    add(
        "--size",
        type=_size,
        default=(16, 0),
        metavar="BYTES",
        help="size of a body; delivery is verified from 8 on, latency measured from 16 on (16); with --distinct also the "
        "smallest and the largest, such as 50-2000",
    )
    add(
        "--distinct",
        action="store_true",
        help="give each message an id, a timestamp, three headers and content of its own",
    )
    add(
        "--single-writes",
        action="store_true",
        help="write each message to the socket by itself, not many together",
    )
    confirms = parser.add_mutually_exclusive_group()
    confirms.add_argument(
        "--window", type=int, default=1000, metavar="N", help="unconfirmed publishes (1000)"
    )
    confirms.add_argument("--no-confirms", action="store_true", help="publish without confirms")
    add("--prefetch", type=int, default=1000, metavar="N", help="prefetch of a consumer; 0: no limit (1000)")
    acks = parser.add_mutually_exclusive_group()
    acks.add_argument("--auto-ack", action="store_true", help="consume without acknowledgements")
    acks.add_argument(
        "--ack-every", type=int, metavar="N", help="messages for each acknowledgement (half of the prefetch)"
    )
    add("--persistent", action="store_true", help="persistent messages in a durable queue")
    add(
        "--queue",
        metavar="NAME",
        help="use this queue and do not delete it (default: a new one, deleted afterwards); with several queues, the "
        "prefix of their names",
    )
    add(
        "--queue-type",
        choices=("classic", "quorum", "stream"),
        default="classic",
        help="default: %(default)s",
    )
    add(
        "--queue-argument",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="argument of the queues, a number or a text; may be repeated",
    )
    add("--queues", type=int, default=1, metavar="N", help="number of queues that messages go to in turn (1)")
    add("--fan-out", type=int, default=1, metavar="N", help="number of queues that each message goes to (1)")
    add(
        "--exchange",
        choices=("default", "direct", "fanout", "topic", "headers"),
        help="type of the exchange (default; for a fan-out, fanout or direct)",
    )
    add(
        "--keys", type=int, default=1, metavar="N", help="number of routing keys that route to each queue (1)"
    )
    add(
        "--bindings",
        type=int,
        default=0,
        metavar="N",
        help="number of further bindings that match nothing (0)",
    )
    add("--headers", type=int, default=0, metavar="N", help="number of headers of each message (0)")
    add(
        "--priorities",
        type=int,
        default=0,
        metavar="N",
        help="number of priorities, which messages have in turn (0)",
    )
    add("--get", action="store_true", help="consume with basic.get, one message at a time")
    add("--seconds", type=float, default=3.0, metavar="S", help="seconds that are measured (3)")
    add("--warmup", type=float, default=1.0, metavar="S", help="seconds of load before the measurement (1)")
    add(
        "--rate",
        type=float,
        default=0.0,
        metavar="R",
        help="messages a second of all publishers together (no limit)",
    )
    add(
        "--pid",
        type=int,
        help="process id of the broker, to measure its processor time with that of its children",
    )
    add("--json", action="store_true", help="print one JSON object")
    return parser


def _url(text: str) -> AmqpUrl:
    try:
        return parse_url(text)
    except ValueError as error:
        raise UsageError(f"--url: {error}") from None


def _check(options: Namespace) -> None:
    """Check the parsed options of `warren bench`.

    :raises UsageError: naming the option that is out of range or conflicts with another
    """
    ranges = {
        "publishers": (0, 4096),
        "consumers": (0, 4096),
        "window": (1, 2**20),
        "prefetch": (0, 65535),
        "ack_every": (1, 65535),
        "seconds": (0.1, 86400),
        "warmup": (0, 86400),
        "rate": (0, 1e9),
        "queues": (1, 100_000),
        "fan_out": (1, 100_000),
        "keys": (1, 100_000),
        "bindings": (0, 1_000_000),
        "headers": (0, 1000),
        "priorities": (0, 255),
    }
    for name, (least, most) in ranges.items():
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            raise UsageError(f"--{name.replace('_', '-')} must be between {least} and {most}, not {value}")
    for size in options.size:
        if not 0 <= size <= MAX_SIZE:
            raise UsageError(f"--size must be between 0 and {MAX_SIZE}, not {size}")
    if not options.publishers and not options.consumers:
        raise UsageError("--publishers and --consumers are both 0, so there is nothing to do")
    if options.ack_every and options.prefetch and options.ack_every > options.prefetch:
        raise UsageError(
            "--ack-every must not be greater than --prefetch, or the consumer would wait forever"
        )
    if options.queue_type == "stream" and options.consumers and (options.auto_ack or not options.prefetch):
        raise UsageError(
            "consumers of a stream need acknowledgements and a prefetch; leave out --auto-ack and --prefetch 0"
        )
    _check_layout(options)
    _check_distinct(options)
    if options.pid is not None and not processor_time.exists(options.pid):
        raise UsageError(f"--pid: process {options.pid} does not run or cannot be measured")


def _check_layout(options: Namespace) -> None:
    exchange = _exchange(options)
    if options.exchange == "default" and options.fan_out > 1:
        raise UsageError(
            "--exchange default routes to one queue; for a --fan-out use fanout, direct, topic or headers"
        )
    if exchange == "fanout" and options.queues > 1:
        raise UsageError("--exchange fanout routes to all queues; set their number with --fan-out")
    if options.keys > 1 and exchange not in ("direct", "topic"):
        raise UsageError("--keys needs --exchange direct or topic")
    if options.bindings and not exchange:
        raise UsageError("--bindings needs an --exchange")
    if options.queues * options.fan_out > MAX_QUEUES:
        raise UsageError(f"--queues times --fan-out must not be more than {MAX_QUEUES:,}")
    turns = options.queues * options.keys * max(options.priorities, 1)
    if turns > MAX_MESSAGES or turns * (options.size[0] + 1024) > MAX_MESSAGE_BYTES:
        raise UsageError(
            "--queues, --keys, --priorities and --size together make too many different messages; "
            f"the limit is {MAX_MESSAGES:,} messages and {MAX_MESSAGE_BYTES:,} bytes"
        )
    for text in options.queue_argument:
        if "=" not in text:
            raise UsageError(f"--queue-argument must be NAME=VALUE, not {text!r}")


def _check_distinct(options: Namespace) -> None:
    least, most = options.size
    if not options.distinct:
        if most:
            raise UsageError("--size with two sizes needs --distinct or --mixed")
        return
    if least < MIN_TIMESTAMPED_SIZE or (most and most < least):
        raise UsageError(
            f"--distinct needs a --size of {MIN_TIMESTAMPED_SIZE} or more, or the smallest and the largest size"
        )
    if options.headers or options.exchange == "headers":
        raise UsageError("--distinct sets headers of its own; leave out --headers and --exchange headers")


def _size(text: str) -> tuple[int, int]:
    """Return the two sizes of `--size`; the second is 0 if only one is given.

    :raises ArgumentTypeError: if the text is neither a number nor two with a hyphen between them
    """
    least, hyphen, most = text.partition("-")
    try:
        return int(least), int(most) if hyphen else 0
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is neither a number of bytes nor two, such as 50-2000") from None


def _exchange(options: Namespace) -> str:
    """Return the type of the exchange to publish to, from the parsed options; empty for the default exchange."""
    if options.exchange is None and options.fan_out > 1:
        return "fanout" if options.queues == 1 else "direct"
    return "" if options.exchange in (None, "default") else str(options.exchange)


def _argument(text: str) -> tuple[str, int | str]:
    name, _, value = text.partition("=")
    return name, int(value) if value.lstrip("-").isdigit() else value


def _ack_every(options: Namespace) -> int:
    given: int | None = options.ack_every
    return given if given is not None else max(1, (options.prefetch or 1000) // 2)
