"""`warren demo orders`: run a shop, kill its broker half-way, and check every order with Spark."""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from warren.cli import pipeline as pipeline
from warren.core.command_output import write_error, write_line, write_table
from warren.core.errors import ExitStatus, UsageError
from warren.core.log_output import TextLines
from warren.core.progress_bars import progress_bars
from warren.demo.orders import COLUMNS, SAMPLE_SIZE, Order, read_orders, sample
from warren.demo.replay import ReplayPlan, ReplayRecord, replay
from warren.demo.services import BrokerProcess, open_store
from warren.demo.shop import AUDIT, ProcessedOrders, Shop
from warren.demo.verdict import MAX_UNJUDGED, Verdict, judge
from warren.pipeline import durations
from warren.pipeline.errors import PipelineError
from warren.pipeline.spark_session import check_spark

MIN_SPAN = 20.0
"""Shortest time, in real seconds, over which the orders are placed."""
ORDERS_A_SECOND = 150
"""Highest number of orders that are placed per real second."""
REAL_TIMEOUT = 8.0
"""Default time that a customer has to pay, in real seconds; `--speed` overrides it."""
MIN_REAL_TIMEOUT = 1.0
"""Shortest time that a customer may have to pay, in real seconds; a `--speed` that leaves less is refused."""
SETTLE_SECONDS = 60.0
"""Longest wait, in real seconds, after the last deadline until every order is paid or cancelled."""


def main(arguments: Sequence[str]) -> int:
    """Run the demo and return the exit code.

    Print the comparison of all orders with their expected outcomes on
    standard output, and the progress on standard error.
    """
    options = parser().parse_args(arguments)
    try:
        timeout = durations.parse(options.timeout)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from None
    speed = options.speed or timeout.total_seconds() / REAL_TIMEOUT
    if timeout.total_seconds() / speed < MIN_REAL_TIMEOUT:
        raise UsageError(
            f"--timeout {options.timeout} at --speed {speed:g} leaves {timeout.total_seconds() / speed:.2g} s of "
            f"real time to pay; choose a speed that leaves at least {MIN_REAL_TIMEOUT:g} s"
        )
    check_spark()
    orders = sample() if options.file is None else read_orders(options.file)
    plan = ReplayPlan(max(MIN_SPAN, len(orders) / ORDERS_A_SECOND), speed, timeout)
    source = options.file or f"a sample of {len(orders):,}"
    write_error(
        f"orders: {len(orders):,} from {source}, placed within {plan.span:.0f} s; "
        f"{durations.format_duration(timeout.total_seconds())} to pay take {plan.time_to_pay.total_seconds():g} s"
    )
    started = time.monotonic()
    log_to_file(options.out)
    try:
        verdict = asyncio.run(run_demo(orders, plan, options.crash, options.out))
    except PipelineError as error:
        write_error(f"warren demo: {error}")
        return ExitStatus.IO
    print_verdict(verdict, options.out, time.monotonic() - started)
    return ExitStatus.SUCCESS if verdict.passed else ExitStatus.FAILED


def complete(before: Sequence[str], last: str) -> Sequence[str]:
    """Return the candidates for `warren completion`: the job, until it has been typed.

    :param before: complete words after `warren demo`
    :param last: beginning of the last word; unused, because the caller selects the candidates that begin with it
    """
    return [] if "orders" in before else ["orders"]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="warren demo", description="Warren at work.")
    jobs = parser.add_subparsers(required=True, metavar="JOB")
    job = jobs.add_parser(
        "orders",
        help="cancel the orders that are not paid in time",
        description="Place, collect and cancel orders through every component, kill the broker half-way, read the "
        "audit with Spark, and check each order. The exit status is 1 if an outcome is wrong.",
    )
    job.add_argument(
        "--file",
        type=Path,
        help=f"CSV with the columns {', '.join(COLUMNS)}; without it a seeded sample of {SAMPLE_SIZE:,}",
    )
    job.add_argument(
        "--timeout", default="30m", help="time to pay, in the time of the file (default: %(default)s)"
    )
    job.add_argument(
        "--speed",
        type=positive,
        help=f"factor by which time passes faster (default: so that the time to pay takes {REAL_TIMEOUT:g} s)",
    )
    job.add_argument("--no-crash", dest="crash", action="store_false", help="do not kill the broker half-way")
    job.add_argument(
        "--out",
        type=Path,
        default=Path("demo-out"),
        help="folder for Parquet files, summary and report (default: %(default)s)",
    )
    return parser


def positive(text: str) -> float:
    """Parse a command-line value that must be a finite number above 0.

    :raises ValueError: if it is not
    """
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def log_to_file(out: Path) -> None:
    """Write the log to a file in the folder `out`, because the terminal shows the progress."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(out / "demo.log", mode="w", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write to {out}: {error.strerror}; choose another folder with --out"
        ) from None
    handler.setFormatter(TextLines())
    logging.getLogger("warren").addHandler(handler)
    logging.getLogger("warren").setLevel(logging.INFO)


async def run_demo(orders: list[Order], plan: ReplayPlan, crash: bool, out: Path) -> Verdict:
    """Run the broker, the shop with all orders, and the Spark job; return the verdict on the outcomes.

    The broker keeps its data in a temporary folder. The Spark job writes its results to `out`.

    :param crash: kill and restart the broker half-way.
    """
    with tempfile.TemporaryDirectory(prefix="warren-demo-") as name:
        folder = Path(name)
        broker = BrokerProcess(folder)
        try:
            async with open_store(folder) as (store, described):
                write_error(f"store: {described}")
                await broker.start()
                shop = Shop(broker.url, plan.time_to_pay, store)
                async with shop.app:
                    record = await process_orders(orders, plan, shop, broker, crash)
            outcomes = await asyncio.to_thread(read_outcomes, broker.url, plan.timeout, out)
        finally:
            await broker.stop()
    return judge(orders, outcomes, plan, record)


async def process_orders(
    orders: list[Order], plan: ReplayPlan, shop: Shop, broker: BrokerProcess, crash: bool
) -> ReplayRecord:
    """Replay the orders and wait until each of them is paid or cancelled; return the real times of the replay.

    Meanwhile, the progress of the handlers is shown on a terminal.

    :param crash: kill and restart the broker half-way.
    """
    payments = [order for order in orders if order.delay is not None]
    with progress_bars() as add:
        placed, paid, cancelled = (
            add("placed", len(orders)),
            add("paid", len(payments)),
            add("cancelled", None),
        )

        def refresh() -> None:
            processed = shop.processed
            placed(len(processed.placed))
            paid(len(processed.paid_in_time) + len(processed.paid_late))
            cancelled(len(processed.cancelled))

        async def watch() -> None:
            while True:
                refresh()
                await asyncio.sleep(0.2)

        watcher = asyncio.create_task(watch())
        try:
            record = await replay(
                orders,
                plan,
                shop,
                broker,
                crash=crash,
                progress=write_error,
            )
            try:
                async with asyncio.timeout(plan.time_to_pay.total_seconds() + SETTLE_SECONDS):
                    while not all_orders_decided(len(orders), len(payments), shop.processed):
                        shop.changed.clear()
                        await shop.changed.wait()
            except TimeoutError:
                write_error("some orders were not decided in time; the others are counted")
            refresh()
        finally:
            watcher.cancel()
    return record


def all_orders_decided(orders: int, payments: int, processed: ProcessedOrders) -> bool:
    """Return True if each order is cancelled or was paid in time, and each payment was processed, also late ones.

    :param orders: number of orders.
    :param payments: number of orders that are paid at some time.
    """
    return (
        len(processed.placed) >= orders
        and len(processed.paid_in_time) + len(processed.cancelled) >= orders
        and len(processed.paid_in_time) + len(processed.paid_late) >= payments
    )


def read_outcomes(url: str, timeout: timedelta, out: Path) -> Mapping[str, str]:
    """Read the audit stream with Spark, and return the outcome of each order, by order id.

    :param url: URL of the broker.
    :param timeout: time that a customer has to pay, in the time of the CSV file.
    """
    words = ["--source", url, "--stream", AUDIT.name, "--out", str(out)]
    parsed = pipeline.parse(["order-timeouts", *words])
    options = replace(parsed.options, own=replace(parsed.options.own, timeout=timeout))
    _, details = pipeline.run(replace(parsed, options=options), lambda step: write_error(f"spark: {step}"))
    write_error(f"spark: read {details.place} in {details.seconds:.1f} s")
    # Only installed with the extra `spark`, which `check_spark` has looked for.
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(out / "orders", columns=["order_id", "outcome"])
    return dict(zip(table["order_id"].to_pylist(), table["outcome"].to_pylist(), strict=True))


def print_verdict(verdict: Verdict, out: Path, seconds: float) -> None:
    """Print how many orders are correct, wrong or not judged, how many have each outcome, and the first ten errors.

    :param seconds: duration of the demo.
    """
    share = verdict.unjudged / verdict.orders
    rows = [
        ("in the file", f"{verdict.orders:,}"),
        ("with the correct outcome", f"{verdict.right:,}"),
        ("not judged: paid within a minute of the timeout", f"{verdict.near_timeout:,}"),
        ("not judged: paid in time, handled after the deadline", f"{verdict.delayed:,}"),
        ("wrong, lost or both paid and cancelled", f"{len(verdict.wrong):,}"),
    ]
    for outcome, number in sorted(verdict.outcomes.items()):
        rows.append((f"  {outcome.replace('_', ' ')}", f"{number:,}"))
    title = "Every order is correct" if verdict.passed else "Not every order is correct"
    write_table(("orders", "number"), rows, right=("number",), title=title)
    write_line(f"report: {out / 'report.html'}   {seconds:.0f} s in all")
    for order_id, error in list(verdict.wrong.items())[:10]:
        write_error(f"warren demo: order {order_id} {error}")
    if share > MAX_UNJUDGED:
        write_error(f"warren demo: {share:.0%} of the orders could not be judged; at most {MAX_UNJUDGED:.0%}")
