"""Sums of compressed updates: messages, and the sparse all-reduce."""
