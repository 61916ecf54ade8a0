"""The policy example of the documentation."""

from __future__ import annotations

import pytest

from tests.support.example_programs import run

pytestmark = pytest.mark.processes


def test_a_policy_works_on_a_live_queue() -> None:
    ran = run("policy")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == ["orders\t3\tshort", "overflow\t2\t", "orders\t4\t", "overflow\t2\t"]
