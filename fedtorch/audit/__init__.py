"""Attacks on a user's own run: what somebody who sees what leaves a client can tell of its text."""
