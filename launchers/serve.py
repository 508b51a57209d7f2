"""Be the server of silos that join by `fedtorch join`, each with its own data on its own machine.

fedtorch serve --config FILE --listen 192.168.7.1:29500
"""

from __future__ import annotations

from collections.abc import Sequence

from fedtorch.config.options import parse
from fedtorch.config.schema import Config

from . import silo


def main(arguments: Sequence[str] | None = None, *, prog: str = "launchers.serve") -> int:
    """Serve; returns the run's exit code."""
    parser = silo.parser(prog, __doc__)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="this machine as the silos reach it")
    args = parse(parser, arguments, needs_config=True)

    def side(config: Config, ranks: dict[int, list[str]]) -> tuple[int, list[str]]:
        return 0, [
            f"{prog}: the server, rank 0 of {len(ranks) + 1}, at {args.listen}; waits for "
            + ", ".join(f"{' and '.join(names)} (rank {rank})" for rank, names in sorted(ranks.items())),
            f"from them it gets: {silo.seen(config)}; no text, no private weights",
            f"here stay: the global model, records and status, in {config.folder}",
            f"waits for silos at most {silo.waits_s(config):g} s (system.start_timeout), and after the run's end for "
            f"those that were away then at most {silo.stays_s(config):g} s (system.end_timeout)",
        ]

    return silo.run(prog, args, "serve", "listen", side)


if __name__ == "__main__":
    raise SystemExit(main())
