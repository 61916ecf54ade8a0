"""The judgement of a cluster run finds what it looks for: lost, doubled and misordered effects."""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.faults.chaos.history import EventType
from tests.faults.cluster.loads import Load
from tests.faults.cluster.node_faults import NodeFault, schedule
from tests.faults.cluster.pattern_loads import OrderedLoad
from tests.faults.cluster.plain_load import QUEUE, PlainLoad
from warren.sdk import PublishTimeout


async def _due(number: int) -> bool:
    return True


async def test_a_missing_effect_is_a_loss() -> None:
    load = Load("load", _due, once=False)
    for _ in range(3):
        await load.step()
    load.effect(1)
    load.effect(3)
    assert load.missing() == {2}
    assert load.faults() == ["load: 1 lost: [2]"]


async def test_a_second_effect_is_a_fault_only_where_one_is_promised() -> None:
    for once, found in ((True, ["load: 1 have more than one effect: [1]"]), (False, [])):
        load = Load("load", _due, once=once)
        await load.step()
        load.effect(1)
        load.effect(1)
        assert load.faults() == found
        assert load.repeated == 1


async def test_no_effect_is_due_after_an_error_but_a_second_one_is_still_a_fault() -> None:
    async def fail(number: int) -> bool:
        raise PublishTimeout("no confirm")

    load = Load("load", fail, once=True)
    await load.step()
    assert (load.refused, load.faults()) == (1, [])
    load.effect(1)
    load.effect(1)
    assert load.faults() == ["load: 1 have more than one effect: [1]"]


async def test_effects_out_of_order_are_a_fault() -> None:
    load = OrderedLoad("load", _due, once=True)
    for number in (1, 3, 2):
        load.effect(number)
    assert load.faults() == ["load: effects out of order: [(1, 3), (3, 2)]"]


def test_the_chaos_checker_judges_the_history_of_plain_publishes() -> None:
    load = PlainLoad([], Random(1))
    for number in (1, 2):
        load.history.note(EventType.PUBLISH, "p0", f"p0:{number}", QUEUE)
        load.history.note(EventType.CONFIRMED, "p0", f"p0:{number}")
    load.history.note(EventType.DELIVERED, "c0", "p0:1", QUEUE)
    load.history.note(EventType.ACK, "c0", "p0:1", QUEUE)
    (fault,) = load.judge()
    assert "a confirmed message is lost: p0:2 in plain" in fault
    assert load.judge() == []


def test_a_schedule_has_as_many_faults_of_each_kind() -> None:
    assert set(Counter(schedule(Random(1), 50)).values()) == {12, 13}
    assert set(schedule(Random(1), 4)) == set(NodeFault)
