"""Who the parties of a run are, where `trust` is set: read before any of them is spoken to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from fedtorch.comm.base import Communicator
from fedtorch.comm.job.parties import Identity
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError, PreflightError
from fedtorch.core.mechanism import Mechanism
from fedtorch.privacy.counts import CountsLevel
from fedtorch.privacy.public_sum import Masking
from fedtorch.privacy.record.shared import SharedNoise
from fedtorch.privacy.secure_sum.answers import Answers
from fedtorch.setup.rules.trust import check_order, check_parties
from fedtorch.trust.keys import needs_cryptography, read_key
from fedtorch.trust.members import Members, Role, read_members
from fedtorch.trust.policy.remote import GateKey
from fedtorch.trust.receipts import FOLDER


def identity_of(
    config: Config, rank: int, today: date | None = None, environ: Mapping[str, str] = os.environ
) -> Identity | None:
    """Who this rank is, and who the others are; None where `trust` is not set.

    today: for `until` in the list; None: by this machine's clock. environ: names the gate that has this side's key,
    where there is one; else the key is read here.

    Raises:
        ConfigError: the list cannot be read or cannot be, or the run's clients do not fit it.
        PreflightError: a party of the run may not take part, or this side's key is not that of its member.
    """
    if config.trust.members is None:
        return None
    needs_cryptography()
    members = read_members(Path(config.trust.members))
    parties = parties_of(config, members)
    roles: list[tuple[str, Role]] = [(name, "silo" if other else "server") for other, name in parties.items()]
    members.check(roles, today or date.today())
    if config.trust.key is None:
        raise ConfigError("trust.members is set but trust.key is not; name the file with this side's own key")
    key, name = GateKey.of(environ) or read_key(Path(config.trust.key)), parties.get(rank)
    if name is None or members.by_name[name].key != key.public:
        owner = members.owner(key.public)
        whose = f"that of `{owner}`" if owner else "nobody's there"
        raise PreflightError(
            f"trust.key is {key.path}, but by {members.path} its key is {whose}, and rank {rank} is "
            f"`{name or 'nobody'}`; give this side the key of its own member, or have it put into the list"
        )
    return Identity(key, members, parties)


def bind_to_party(config: Config, comm: Communicator, mechanism: Mechanism, *, is_new: bool) -> None:
    """Let a mechanism keep what its party has answered, and have its noise added by the party's gate.

    is_new: what the folder has is of another run.

    Raises:
        CheckpointError: the file of answers cannot be read.
    """
    _keep_answers(config, comm, mechanism.masking, is_new=is_new)
    gate = None if comm.witness is None else comm.witness.gate
    if gate is not None and isinstance(mechanism, SharedNoise | CountsLevel) and not config.privacy.simulate:
        mechanism.silos.elsewhere = gate.add_noise


def _keep_answers(config: Config, comm: Communicator, masking: Masking | None, *, is_new: bool) -> None:
    """Let a party that signs with a key of its own keep for which sums it has helped to remove masks.

    Not where the cohort is drawn anew when a round is withheld, so that a round has several sums.
    """
    if masking is None or not comm.party or comm.is_server or config.privacy.kind == "client":
        return
    path = config.folder / FOLDER / comm.party / "answers.jsonl"
    if is_new:
        path.unlink(missing_ok=True)
    masking.answers = Answers(path)


def parties_of(config: Config, members: Members) -> dict[int, str]:
    """Rank -> name of its member: the server's, and of each silo the one client that is called like a member.

    Raises:
        ConfigError: clients are not pinned to ranks of one process each, a rank has none or two such clients, or
            updates would leave before all have signed what they got.
    """
    system, found = config.system, dict[int, list[str]]()
    check_parties(config)
    check_order(config)
    for name, rank in system.pinned.items():
        found.setdefault(rank, []).append(name)
    parties = {0: members.server}
    for rank, names in sorted(found.items()):
        known = [name for name in names if name in members.by_name] or names
        if len(known) != 1:
            raise ConfigError(
                f"system.pinned gives {', '.join(names[:5])} to rank {rank}, of which {len(known)} are among the "
                f"members in {members.path}; expected one, whose party the rank is"
            )
        parties[rank] = known[0]
    return parties
