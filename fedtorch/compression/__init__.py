"""Compressed updates."""
