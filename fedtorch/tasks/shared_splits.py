"""Splits that are one file for all clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtorch.data.own.keys import SplitRule
from fedtorch.data.own.rows import is_file


def shared_files(clients: Mapping[str, Any], rule: SplitRule) -> dict[str, frozenset[str]]:
    """Split -> the clients that have the same file there, of dev and test; those that are dealt out are not there.

    clients: their entries in a prepared folder's manifest. Who is held out shares nothing.
    """
    found = {}
    for split, value in (("dev", rule.dev), ("test", rule.test)):
        if not isinstance(value, str) or not is_file(value):
            continue
        entries = {
            client: entry["splits"].get(split, {}) for client, entry in clients.items() if client not in rule.held_out
        }
        files = {entry.get("sha256") for entry in entries.values()}
        if len(entries) > 1 and len(files) == 1 and files != {None}:
            found[split] = frozenset(entries)
    return found
