"""Kills a `warren broker` again and again under load, and judges what its clients saw.

python -m tests.chaos --rounds 20 [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from tests.chaos.checker import Tally
from tests.chaos.history import What
from tests.chaos.rounds import Broken, Load
from tests.support.broker import BrokerProcess
from tests.support.processes import Child
from warren.command import Exit

HISTORY = "history.jsonl"


class Process:
    """A `warren broker` that is killed, and now and then stopped."""

    def __init__(self, data_dir: Path, random: Random, stops: float) -> None:
        """:param stops: how often it is stopped cleanly instead of killed, between 0 and 1"""
        self._random = random
        self._broker = BrokerProcess(data_dir, "--log-level", "warning")
        self._stops = stops
        self.damage: list[str] = []
        """What it has said of its disk, which nobody has touched."""

    @property
    def url(self) -> str:
        return self._broker.url

    async def start(self) -> None:
        """Now and then it is killed while it starts."""
        while self._random.random() < 0.1:
            with Child(self._broker.command()) as child:
                await asyncio.sleep(self._random.uniform(0.1, 0.4))
                child.kill()
        self._broker.start()

    async def end(self) -> tuple[What, float]:
        child = self._broker.child
        assert child is not None
        if self._random.random() < self._stops:
            # It answers its clients meanwhile, so they have to be heard.
            status = await asyncio.to_thread(self._broker.stop)
            if status != Exit.DONE:
                raise Broken(f"a clean stop ended with {status}: {child.errors[-2000:]}")
            ended = What.STOPPED, time.monotonic()
        else:
            at = time.monotonic()
            self._broker.kill()
            ended = What.KILLED, at
        self.damage += [
            line for line in child.errors.splitlines() if " ERROR " in line or " CRITICAL " in line
        ]
        return ended

    def close(self) -> None:
        self._broker.stop()


async def run(
    rounds: int,
    seed: int,
    folder: Path,
    *,
    longest: float = 2.5,
    stops: float = 0.1,
    keep: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Tally:
    """Kill a broker on `folder` so many times, at moments that the seed says.

    :param longest: seconds that the load lasts at most until the kill
    :param stops: how often the broker is stopped cleanly instead, between 0 and 1
    :param keep: write the last history to `folder` also if there is no fault in it
    :raises Broken: at the first fault; the history that shows it is in `folder` then
    """
    total = Tally()
    random = Random(seed)
    subject = Process(folder / "data", Random(seed + 1), stops)
    load = Load(subject, random)
    await subject.start()
    try:
        await load.prepare()
        left = rounds
        while left:
            for _ in range(min(left, random.randint(1, 4))):
                await load.round(lambda: asyncio.sleep(random.uniform(0.05, longest)))
                await subject.start()
                await load.prepare()
                left -= 1
            verdict = await load.empty()
            total.add(verdict.tally)
            if verdict.faults:
                raise Broken("; ".join(str(fault) for fault in verdict.faults[:5]))
            if subject.damage:
                raise Broken(f"the broker reports damage: {subject.damage[0]}")
            say(f"{rounds - left} of {rounds} rounds: {told(total)}")
            if left:
                load.forget()
        if keep:
            load.history.write(folder / HISTORY)
    except BaseException:
        load.history.write(folder / HISTORY)
        raise
    finally:
        subject.close()
    return total


def told(tally: Tally) -> str:
    return ", ".join(f"{value} {name}" for name, value in vars(tally).items())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the schedule (default: the time)"
    )
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="warren-chaos-"))
    print(f"seed {options.seed}", flush=True)
    try:
        total = asyncio.run(
            run(options.rounds, options.seed, folder, say=functools.partial(print, flush=True))
        )
    except Broken as error:
        print(
            f"chaos: seed {options.seed}: {error}; history and data folder are in {folder}", file=sys.stderr
        )
        return Exit.FAILED
    shutil.rmtree(folder)
    print(f"{options.rounds} rounds without a fault: {told(total)}")
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
