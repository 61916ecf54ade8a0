"""Every pattern answers every fault, and its page says what its tests show."""

from __future__ import annotations

import pytest

from tests.patterns.faults.matrix import Matrix, matrices


@pytest.mark.parametrize("matrix", matrices(), ids=lambda matrix: matrix.name)
def test_every_fault_is_answered_in_the_page_as_in_the_tests(matrix: Matrix) -> None:
    assert not matrix.missing()
    assert matrix.page.read_text() == matrix.page_with_table(), "run: python -m tests.patterns.faults"
