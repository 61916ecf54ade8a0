"""The one error of the pipeline."""

from __future__ import annotations


class PipelineError(Exception):
    """What was asked for cannot be done. One line: what is wrong and what to do, without a password."""
