"""Counts of what silos have together, before anybody trains: labels, lengths, words; `fedtorch stats`."""
