"""Look again, offline, at what a party has of a run: signatures, the chain of records, receipts, sums, decisions.

fedtorch verify runs/silos
fedtorch verify runs/silos --html silos.html                            # as a page too
fedtorch verify runs/silos --beside copies/north/receipts.jsonl
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedtorch.core.errors import CheckpointError, ConfigError, FedtorchError, TrustError, print_error
from fedtorch.core.files import replace_file
from fedtorch.report.html_style import document
from fedtorch.report.html_table import note, section, table
from fedtorch.trust.keys import needs_cryptography
from fedtorch.trust.members import read_members
from fedtorch.trust.receipts import FILE, FOLDER, ReceiptsFile
from fedtorch.trust.verify import Verified, Verifier, forks


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch verify") -> int:
    """Verify a run's folder; returns the exit code."""
    args = _parser(prog).parse_args(arguments)
    try:
        needs_cryptography()
        members = None if args.members is None else read_members(args.members)
        folders = sorted(path.parent for path in (args.run / FOLDER).glob(f"*/{FILE}"))
        if not folders:
            raise ConfigError(
                f"{args.run / FOLDER} has no receipts; expected the folder of a run with trust.verify, at one of its "
                "parties"
            )
        if lacking := [path for path in args.beside if not path.is_file()]:
            raise ConfigError(f"--beside names {lacking[0]}, which is no file; expected a party's {FILE}")
        verifiers = [Verifier(folder, members) for folder in folders]
        found = [each.verify() for each in verifiers]
        print("\n".join(each.shown() for each in found))
        two = forks(verifiers, [ReceiptsFile(path) for path in args.beside])
        wrong = [failure for each in found for failure in each.failures] + two
        for failure in two:
            print(f"WRONG: {failure}")
        if args.html is not None:
            _write(args.html, page(args.run.name, found, two))
        if wrong:
            raise TrustError(
                f"{len(wrong)} {'things are' if len(wrong) > 1 else 'thing is'} wrong; the first: {wrong[0]}"
            )
    except FedtorchError as error:
        return print_error(error, prog)
    print("all of it is right")
    return 0


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the run folder, at any party")
    parser.add_argument(
        "--members", type=Path, metavar="FILE", help="list of members, where none is kept in the folder"
    )
    parser.add_argument(
        "--beside", type=Path, nargs="+", default=[], metavar="FILE", help="receipts.jsonl of other parties, to compare"
    )
    parser.add_argument("--html", type=Path, metavar="PAGE", help="write the findings as a page too")
    return parser


def page(name: str, found: Sequence[Verified], forked: Sequence[str]) -> str:
    """The findings as one page. forked: proofs that the server has signed two records of one exchange."""
    wrong = [f"{each.party}: {failure}" for each in found for failure in each.failures]
    told = [*wrong, *forked]
    verdict = f"{len(told)} of what was looked at is wrong." if told else "All that was looked at is right."
    rows = [[(text, None) for text in (each.party, *line)] for each in found for line in each.lines]
    return document(
        f"{name}: verified",
        f"<p>{escape(verdict)} Parties: {escape(', '.join(each.party for each in found))}.</p>",
        section("Wrong", "".join(map(note, told))),
        section("Right", table(["party", "kind", "what was found"], rows, texts=True)),
    )


def _write(path: Path, text: str) -> None:
    """Raises CheckpointError: the disk refuses."""
    try:
        replace_file(path, text)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written ({error}); name another file by --html") from error


if __name__ == "__main__":
    raise SystemExit(main())
