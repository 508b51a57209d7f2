"""A checkpoint's own files; what a manifest says of a client is laid out once for as long as it stays the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from fedtorch.checkpoint.files import FEW, MANIFEST, FileEntry, digest_file, entry_of, save_tensors, sync, to_json
from fedtorch.checkpoint.manifest_form import FORM, SERVER_FILES
from fedtorch.core.server import ServerState
from fedtorch.core.version import VERSION


class ClientLines:
    """Text of a manifest about clients, kept for those whose files stay the same."""

    def __init__(self) -> None:
        self._of: dict[str, Sequence[FileEntry]] = {}  # by name, as the next two
        self._files: dict[str, str] = {}
        self._clients: dict[str, str] = {}

    def of(self, clients: Mapping[str, Sequence[FileEntry]]) -> tuple[str, str]:
        """(`files`, `clients`) of the manifest, without braces, as `to_json` writes them; clients sorted by name.

        A client whose files are the very object that they were is taken to have the same.
        """
        changed = [client for client, files in clients.items() if self._of.get(client) is not files]
        are_others = len(self._of) != len(clients) or any(client not in self._of for client in changed)
        for client in changed:
            files = self._of[client] = clients[client]
            self._files[client] = ", ".join(map(_file_line, files))
            self._clients[client] = f"{to_json(client)}: {to_json([entry.path for entry in files])}"
        if are_others:
            in_order = sorted(clients)
            self._of = {client: clients[client] for client in in_order}
            self._files = {client: self._files[client] for client in in_order}
            self._clients = {client: self._clients[client] for client in in_order}
        return ", ".join(filter(None, self._files.values())), ", ".join(self._clients.values())


def _file_line(entry: FileEntry) -> str:
    return f'{to_json(entry.path)}: {{"bytes": {entry.bytes}, "xxh3": "{entry.digest:016x}"}}'


def write_folder(
    folder: Path,
    round: int,
    server: ServerState,
    clients: Mapping[str, Sequence[FileEntry]],
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
    homes: Mapping[str, str],
    lines: ClientLines,
) -> None:
    """Write a checkpoint's own files into `folder`, the manifest last, all synced.

    lines: of earlier manifests of the same process, so that a client's are laid out when its files change.
    """
    tensors, told = (folder / name for name in SERVER_FILES)
    own = [entry_of(tensors.name, tensors, save_tensors(tensors, server.tensors, {}))]
    state: dict[str, Any] = {"round": round, "states": len(clients)}
    state |= {"numbers": server.numbers, "num_clients": server.num_clients, "names": list(server.tensors)}
    told.write_text(to_json(state))
    sync(told)
    own.append(FileEntry(told.name, told.stat().st_size, digest_file(told)))
    files, of_clients = lines.of(clients)
    parts = [to_json({"form": FORM, "fedtorch": VERSION, "round": round, "config": config, "facts": facts})[1:-1]]
    parts.append(f'"files": {{{", ".join([*filter(None, [files]), *map(_file_line, own)])}}}')
    parts.append(f'"clients": {{{of_clients}}}')
    if away := {client: homes[client] for client in sorted(homes) if client in clients}:
        parts.append(f'"homes": {to_json(away)}')
    text = f"{{{', '.join(parts)}}}".encode()
    sealed = b'{"xxh3": "%s", "manifest": %s}' % (xxhash.xxh3_64_hexdigest(text).encode(), text)
    # in lines as long as people may want to read it: laying out many clients takes seconds
    laid_out = sealed if len(clients) > FEW else to_json(json.loads(sealed), indent=1).encode()
    (folder / MANIFEST).write_bytes(laid_out)
    sync(folder / MANIFEST)
    sync(folder)
