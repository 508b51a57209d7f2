"""Weighted sums of updates, with the same bits in whatever order and by whatever way they are added."""
