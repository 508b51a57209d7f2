"""Print the sha256 of the package's code and of every file of others that a run would execute.

fedtorch digest CONFIG

The lines are those that a policy names under `code` (docs/trust.md); nothing of that code is imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fedtorch.config.options import add_config_options, add_script_option, parse
from fedtorch.core.errors import FedtorchError, print_error
from fedtorch.setup.code import codes_of


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch digest") -> int:
    """Print them; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_config_options(parser, "whose plug-ins count too; without one the package alone")
    add_script_option(parser)
    args = parse(parser, arguments)
    try:
        found = codes_of(args.config, args.set)
    except FedtorchError as error:
        return print_error(error, prog)
    print("code:")
    print("\n".join(f"  - {code.digest} # {code.what}" for code in found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
