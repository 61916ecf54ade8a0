"""`python -m tests.patterns.faults`: writes every pattern's fault table into its page."""

from __future__ import annotations

from tests.patterns.faults.matrix import matrices

for matrix in matrices():
    matrix.page.write_text(matrix.page_with_table())
