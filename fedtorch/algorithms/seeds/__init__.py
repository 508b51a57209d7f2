"""Algorithms whose clients send a number for each of many seeded directions, in place of an update of the weights."""
