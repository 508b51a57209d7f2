"""Runs as tables and plots."""
