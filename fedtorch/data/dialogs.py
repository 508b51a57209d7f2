"""Readers for published dialog sets: Taskmaster-1, Taskmaster-4 and Schema-Guided Dialogue.

A dialog is a list of [side, text] with side `user` or `assistant`; either may begin. Messages name file and dialog
by number, never text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtorch.core.errors import DataError
from fedtorch.data.json_file import read_json

Turns = list[list[str]]

USER, ASSISTANT = "user", "assistant"
_SIDES = {"user": USER, "assistant": ASSISTANT, "system": ASSISTANT}

# Taskmaster-1: the part of `instruction_id` before the first `-`, and the paper's client.
TASKMASTER_1 = {
    "auto": "repair",
    "coffee": "coffee",
    "movie": "movie",
    "restaurant": "restaurant",
    "pizza": "pizza",
    "uber": "ride",
}
DROPPED = {
    "empty": "no utterance with text",
    "one_side": "only one side speaks",
    "several_services": "dialogs with more than one service, or none",
    "deleted": "utterances `(deleted)`",
    "repeated": "utterances that repeat the one before, by the same side",
}


@dataclass
class DialogSet:
    """Dialogs that were read of a published set."""

    clients: dict[str, list[Turns]] = field(default_factory=dict)
    """client -> its dialogs"""
    dropped: Counter[str] = field(default_factory=Counter)
    """what was left out, by the reasons of `DROPPED`; the first three count dialogs"""
    seen: set[str] = field(default_factory=set)
    """all clients, those too of whose dialogs none is left"""

    def add(self, client: str, utterances: Iterable[tuple[str, str]], *, merge: bool) -> None:
        """Clean a dialog and keep it, if both sides speak."""
        turns = self.clean(utterances, merge=merge)
        self.seen.add(client)
        if len({side for side, _ in turns}) == 2:
            self.clients.setdefault(client, []).append(turns)
        else:
            self.dropped["one_side" if turns else "empty"] += 1

    def clean(self, utterances: Iterable[tuple[str, str]], *, merge: bool) -> Turns:
        """The turns of a dialog: runs of white space to one blank, no empty, deleted or repeated utterance.

        merge: consecutive utterances of one side become one turn, joined by a blank; else each is a turn.
        """
        turns: Turns = []
        before = ("", "")
        for side, raw in utterances:
            text = " ".join(raw.split())
            if text == "(deleted)":
                self.dropped["deleted"] += 1
            elif text and (side, text) == before:
                self.dropped["repeated"] += 1
            elif text and merge and turns and turns[-1][0] == side:
                turns[-1][1] += f" {text}"
                before = (side, text)
            elif text:
                turns.append([side, text])
                before = (side, text)
        return turns


def read_taskmaster_1(files: Iterable[Path], *, merge: bool = True) -> DialogSet:
    """Self and Wizard-of-Oz dialogs merged, by domain under the paper's six names.

    Raises:
        DataError: a file is no list of dialogs, or a dialog has no known `instruction_id` or speaker.
    """
    return _read_taskmaster(files, merge, "instruction_id", _client_of_instruction)


def read_taskmaster_4(files: Iterable[Path], *, merge: bool = True) -> DialogSet:
    """Coffee orders; the client is `vertical` in small letters.

    Raises:
        DataError: see `read_taskmaster_1`.
    """
    return _read_taskmaster(files, merge, "vertical", lambda name: name.strip().lower() or None)


def read_sgd(files: Iterable[Path], *, merge: bool = True) -> DialogSet:
    """Dialogs with exactly one service, by domain: the service's name before `_`, in small letters.

    Raises:
        DataError: a file is no list of dialogs, or a dialog lacks a field.
    """
    found = DialogSet()
    for path in files:
        for place, dialog in _dialogs(path):
            services = dialog.get("services")
            if not isinstance(services, list) or not all(isinstance(name, str) and name for name in services):
                raise DataError(f"{path}, dialog {place}: `services` is no list of names")
            if len(services) == 1:
                client = services[0].partition("_")[0].lower()
                found.add(client, _utterances(path, place, dialog, "turns", "utterance"), merge=merge)
            else:
                found.dropped["several_services"] += 1
    return found


def _read_taskmaster(files: Iterable[Path], merge: bool, key: str, client_of: Callable[[str], str | None]) -> DialogSet:
    found = DialogSet()
    for path in files:
        for place, dialog in _dialogs(path):
            name = dialog.get(key)
            client = client_of(name) if isinstance(name, str) else None
            if client is None:
                raise DataError(
                    f"{path}, dialog {place}: no known `{key}`; expected "
                    + (f"one that begins with {', '.join(TASKMASTER_1)}" if key == "instruction_id" else "a name")
                    + "; is it another release?"
                )
            found.add(client, _utterances(path, place, dialog, "utterances", "text"), merge=merge)
    return found


def _client_of_instruction(name: str) -> str | None:
    return TASKMASTER_1.get(name.partition("-")[0])


def _dialogs(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(number from 1, dialog) of a file; one dialog alone, as in Taskmaster's sample, is a list of one."""
    content = read_json(path, "download it again")
    content = [content] if isinstance(content, dict) else content
    if not isinstance(content, list):
        raise DataError(f"{path} holds a {type(content).__name__}; expected a list of dialogs")
    for place, dialog in enumerate(content, start=1):
        if not isinstance(dialog, dict):
            raise DataError(f"{path}, dialog {place}: a {type(dialog).__name__}; expected an object")
        yield place, dialog


def _utterances(
    path: Path, place: int, dialog: Mapping[str, Any], key: str, text_key: str
) -> Iterator[tuple[str, str]]:
    utterances = dialog.get(key)
    if not isinstance(utterances, list):
        raise DataError(f"{path}, dialog {place}: `{key}` is missing or no list")
    for number, utterance in enumerate(utterances, start=1):
        speaker, text = (utterance.get(k) if isinstance(utterance, dict) else None for k in ("speaker", text_key))
        side = _SIDES.get(speaker.strip().lower()) if isinstance(speaker, str) else None
        if side is None or not isinstance(text, str):
            raise DataError(
                f"{path}, dialog {place}, utterance {number}: expected `speaker` (USER, ASSISTANT or SYSTEM, in any "
                f"case) and `{text_key}` (a string)"
            )
        yield side, text
