"""Resequencer: handle messages in the order of their numbers."""

from warren.patterns.resequencer.resequencer import Resequencer, ResequencerStatistics
from warren.patterns.resequencer.sequence_numbers import SequenceNumbers

__all__ = ["Resequencer", "ResequencerStatistics", "SequenceNumbers"]
