"""Be a silo of a federation: train on the data of this machine, for a server that runs `fedtorch serve`.

fedtorch join --server 192.168.7.1:29500 --config FILE --silo north
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from fedtorch.config.options import parse
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError
from fedtorch.lifecycle.losing import what_is_here

from . import silo, site_policy


def main(arguments: Sequence[str] | None = None, *, prog: str = "launchers.join") -> int:
    """Join; returns the run's exit code."""
    parser = silo.parser(prog, __doc__)
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="where it serves")
    parser.add_argument("--silo", required=True, metavar="CLIENT", help="a client of system.pinned that is here")
    site_policy.add_options(parser)
    args = parse(parser, arguments, needs_config=True)

    def side(config: Config, ranks: dict[int, list[str]]) -> tuple[int, list[str]]:
        rank = next((rank for rank, names in ranks.items() if args.silo in names), 0)
        if not rank:
            near = get_close_matches(args.silo, config.system.pinned, 1)
            known = f"did you mean `{near[0]}`?" if near else f"it has {', '.join(config.system.pinned)}"
            raise ConfigError(f"--silo is {args.silo}, which system.pinned does not have; {known}")
        return rank, [
            f"{prog}: silo {' and '.join(ranks[rank])}, rank {rank} of {len(ranks) + 1}, of the server at "
            f"{args.server}",
            f"the server will see: {silo.seen(config)}",
            f"here stay: the data; private weights and what else clients keep, their own models and this log, in "
            f"{config.folder} (on a disk of this machine, if that is one)",
            f"waits for the server, and every time for the others, at most {silo.waits_s(config):g} s "
            "(system.start_timeout)",
            *([f"from before, {here}"] if (here := what_is_here(config)) else []),
        ]

    return silo.run(prog, args, "join", "server", side)


if __name__ == "__main__":
    raise SystemExit(main())
