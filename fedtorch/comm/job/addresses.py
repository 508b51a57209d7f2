"""By which address the other hosts of a job reach this rank: found and tried out before any group is made.

Left to itself gloo announces what the machine's own name means, which on Debian and Ubuntu is 127.0.1.1.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

from fedtorch.comm.job.interfaces import LOOPBACK_NAMES, Interface, find, interfaces, is_loopback, network_name, towards
from fedtorch.comm.job.ports import Ports, listen
from fedtorch.comm.job.public import problem_of, refuse_public

log = logging.getLogger(__name__)

VARIABLES = {"GLOO_SOCKET_IFNAME": "{}", "NCCL_SOCKET_IFNAME": "={}"}
"""By which the libraries are told an interface; NCCL takes the beginning of a name unless it is told otherwise."""
_TRY_S = 15.0  # for a connection between two hosts; a wire that is cut for five seconds is no reason to give up
_SHOWN = 8
_ADVICE = (
    "set system.interface to the interface or the network that the hosts share, such as `eth1` or `10.0.0.0/8` "
    "(GLOO_SOCKET_IFNAME where they are called differently)"
)
Notes = Mapping[int, Mapping[str, Any]]


class AddressStore(Protocol):
    """Methods of `comm.job.store.Store` that are needed here."""

    address: str
    ports: Ports | None
    spans_hosts: bool


class Meeting(Protocol):
    """Methods of `comm.job.rendezvous.Rendezvous` that are needed here."""

    def addresses(self, note: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]: ...


@dataclass(frozen=True)
class Binding:
    """Where this rank's groups listen."""

    interface: Interface
    """As the others are told."""
    is_users: bool
    """Chosen by the user's own GLOO_SOCKET_IFNAME, which gloo reads for itself."""
    hosts: tuple[str, ...]
    """Their names, by rank."""

    def tell_libraries(self) -> None:
        """Set the variables that are not set, for groups that a library makes (DeepSpeed, NCCL)."""
        for name, form in VARIABLES.items():
            if self.interface.name:
                os.environ.setdefault(name, form.format(self.interface.name))


def may_span_hosts(environ: Mapping[str, str]) -> bool:
    """Can the ranks be on several hosts? Where they cannot, nothing has to be found out."""
    if local := environ.get("LOCAL_WORLD_SIZE"):
        return int(local) < int(environ["WORLD_SIZE"])
    return environ["MASTER_ADDR"] not in LOOPBACK_NAMES


def check_master(environ: Mapping[str, str], *, trusts: bool) -> None:
    """Before a rank listens or connects there.

    Raises:
        PreflightError: on a job of several hosts rank 0 is at a public address, and the rank does not trust those.
    """
    if not trusts and environ.get("MASTER_ADDR") and may_span_hosts(environ):
        refuse_public(environ["MASTER_ADDR"], "MASTER_ADDR")


def bind(
    store: AddressStore, meeting: Meeting, wanted: str | None, before: Sequence[str] = (), *, trusts: bool = False
) -> tuple[str, ...]:
    """Set where this rank's groups listen, see `agree`; the name of every rank's host, none on a job of one host.

    What libraries make listens on the same interface, unless the user has said where. before: what it was when more
    ranks were there than now, for those that are away. trusts: may it be a public address?
    """
    binding = (
        agree(meeting, wanted, os.environ, trusts=trusts, ports=store.ports) if may_span_hosts(os.environ) else None
    )
    store.spans_hosts = binding is not None or bool(before)
    if binding is None:
        return tuple(before)
    log.debug("this rank is reached at %s", binding.interface)
    binding.tell_libraries()
    store.address = "" if binding.is_users and store.ports is None else binding.interface.address
    return tuple(now or then for now, then in zip_longest(binding.hosts, before, fillvalue=""))


def agree(
    meeting: Meeting,
    wanted: str | None,
    environ: Mapping[str, str],
    *,
    trusts: bool = False,
    ports: Ports | None = None,
) -> Binding | None:
    """Where this rank's groups are to listen; None on a job of one host: wherever they like. All ranks call it alike.

    1. Every rank tells the address by which it reaches MASTER_ADDR, or the one that `wanted` or GLOO_SOCKET_IFNAME
       asks for. On the host that MASTER_ADDR names that may be a loopback address.
    2. A rank with such an address takes the one by which it reaches another host. All tell what they have now; a
       loopback address is refused, and a public one unless the rank `trusts` it.
    3. The first rank of every host connects to every other host, and those that cannot are named.

    wanted: `system.interface`. ports: of which this rank listens at one meanwhile, and its groups later.

    Raises:
        PreflightError: on all ranks; a host has no address that the others can reach.
    """
    network = network_name()
    users = environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    found, problem = _first(users or wanted, environ["MASTER_ADDR"])
    told = {"network": network, "host": socket.gethostname()[:64], "port": "", "problem": problem}
    places, hosts = meeting.addresses({**told, "address": _shown(found), "phase": "found"})
    if len(places) < 2:
        return None
    if found is not None and found.is_loopback and not (users or wanted):
        others = [place for other, place in places.items() if other != network and place]
        found = next((way for place in others if (way := towards(place.split()[0])) and not way.is_loopback), found)
    told["problem"] = problem or ("" if trusts else problem_of(_address(found)))
    listener = None if told["problem"] else _listen(found, ports)
    try:
        port = str(listener.getsockname()[1]) if listener else ""
        places, _ = meeting.addresses({**told, "address": _shown(found), "port": port, "phase": "chosen"})
        speaks = places.get(network, "") == f"{_address(found)} {port}"
        failed = _try(places, network) if speaks else ""
        meeting.addresses({**told, "address": _shown(found), "problem": failed, "phase": "tried"})
    finally:
        if listener is not None:
            _close(listener)
    assert found is not None, "a rank without an address is refused"
    return Binding(found, bool(users), hosts)


def decide(notes: Notes) -> dict[str, Any]:
    """On the server: an error, or `places`, the name of every network -> address and port of its first rank; `hosts`.

    A network is that of a host, or of a container that has one to itself.
    """
    places: dict[str, str] = {}
    names = [notes[rank]["host"] if rank in notes else "" for rank in range(max(notes) + 1)]  # one may be away
    verdict = {"places": places, "hosts": names}
    for rank in sorted(notes):
        note = notes[rank]
        address = note["address"].partition(" ")[0]
        usable = address if note["phase"] != "found" or not is_loopback(address) else ""
        places[note["network"]] = places.get(note["network"]) or f"{usable} {note['port']}".strip()
    if len(places) < 2:
        return verdict
    if notes[0]["phase"] == "tried":
        failed = {rank: notes[rank]["problem"] for rank in notes}
        problems = [f"{_who(notes, rank)} cannot connect to {text}" for rank, text in failed.items() if text]
        advice = f"; open the ports between the hosts to each other, or {_ADVICE}"
    else:
        problems = [text for rank in notes if (text := _unusable(notes, rank))]
        advice = f"; {_ADVICE}"
    if problems:
        return {"error": "; ".join(problems[:_SHOWN]) + advice, "kind": "preflight"}
    return verdict


def _unusable(notes: Notes, rank: int) -> str:
    note = notes[rank]
    if note["problem"]:
        return f"{_who(notes, rank)}: {note['problem']}"
    if note["phase"] == "chosen" and (not note["address"] or is_loopback(note["address"].partition(" ")[0])):
        return f"{_who(notes, rank)} would announce the loopback address, which no other host reaches"
    return ""


def _who(notes: Notes, rank: int) -> str:
    note = notes[rank]
    return f"rank {rank} on host `{note['host']}`" + (f" at {note['address']}" if note["address"] else "")


def _first(wanted: str | None, master: str) -> tuple[Interface | None, str]:
    """Return the address that is asked for or leads to `master`, and what is wrong with it."""
    if wanted is None:
        return towards(master), ""
    if found := find(wanted):
        return found, ""
    there = ", ".join(f"{each.name} {each.address}" for each in interfaces()[:_SHOWN])
    return None, f"there is no interface or address `{wanted}` (system.interface or GLOO_SOCKET_IFNAME), only {there}"


def _listen(found: Interface | None, ports: Ports | None) -> socket.socket | None:
    """A socket for the others to try."""
    if found is None:
        return None
    with suppress(OSError):
        listener = listen(found.address, ports, backlog=1024)
        threading.Thread(target=_accept, args=(listener,), name="fedtorch-addresses", daemon=True).start()
        return listener
    return None


def _accept(listener: socket.socket) -> None:
    with suppress(OSError):  # it was closed
        while True:
            listener.accept()[0].close()


def _close(listener: socket.socket) -> None:
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
    listener.close()


def _try(places: Mapping[str, str], own: str) -> str:
    """Which of the other hosts cannot be connected to, with the reasons; all are tried at once."""
    failed: dict[str, str] = {}

    def call(place: str) -> None:
        address, _, port = place.partition(" ")
        try:
            socket.create_connection((address, int(port)), timeout=_TRY_S).close()
        except (OSError, ValueError) as error:
            failed[address] = str(error)

    threads = [threading.Thread(target=call, args=(place,)) for network, place in places.items() if network != own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ", ".join(f"{address} ({why})" for address, why in sorted(failed.items()))[:1000]


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _address(found: Interface | None) -> str:
    return found.address if found else ""


def _shown(found: Interface | None) -> str:
    return str(found) if found else ""
