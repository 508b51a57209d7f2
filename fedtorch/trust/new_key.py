"""Make the pair of keys by which a party of a federation is known.

fedtorch keys new north
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedtorch.core.errors import ConfigError, FedtorchError, print_error
from fedtorch.trust.keys import needs_cryptography, new_key


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch keys new") -> int:
    """Make a pair; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", metavar="NAME", help="of the member; NAME.key and NAME.pub are written")
    parser.add_argument("--folder", type=Path, default=Path(), metavar="DIR", help="where to (here)")
    args = parser.parse_args(arguments)
    try:
        needs_cryptography()
        if args.name in ("", ".", "..") or "/" in args.name:
            raise ConfigError(f"NAME is {args.name!r}; expected the name of a member, as in the list of members")
        if not args.folder.is_dir():
            raise ConfigError(f"--folder is {args.folder}, which is no folder")
        key = new_key(args.folder / f"{args.name}.key")
    except FedtorchError as error:
        return print_error(error, prog)
    print(f"{key.path}: stays here, readable by you alone; trust.key names it")
    print(f"{key.path.with_suffix('.pub')}: for the list of members, by a way on which nobody can change it:")
    print(f"  {args.name}: {{role: silo, key: {key.public.hex()}}}")
    print("(role: server for the one that is the server)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
