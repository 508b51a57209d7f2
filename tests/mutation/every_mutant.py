"""All mutants of the files in `test_mutants.py`, where the slow set takes a sample: what survives, and how many.

python tests/mutation/every_mutant.py [--most N] [NAME ...]      # names as in tests.yaml; default: all of them

--most N: the first N of each file, in the order of the slow set's sample.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mutants import limit_of, mutants, sample, survives
from test_mutants import TESTS, import_once, listed_survivors, place, words


def main(arguments: list[str] | None = None) -> int:
    """0: what survives is what is listed, in every file."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--most", type=int, default=sys.maxsize)
    args = parser.parse_args(arguments)
    import_once()
    code = 0
    for name in args.names or sorted(TESTS):
        path, module = place(name)
        source, tests = path.read_text(), words(name)
        begun = time.monotonic()
        if (limit := limit_of(module, path, tests)) is None:
            print(f"{name}: its tests fail without any change", flush=True)
            code = 1
            continue
        total, made = len(list(mutants(source))), sample(source, args.most)
        listed, left = listed_survivors(name), set[str]()
        for mutant in made:
            if survives(module, path, mutant.tree, tests, limit):
                left.add(mutant.name)
                print(f"  {'listed' if mutant.name in listed else 'NEW   '}  {mutant.name}", flush=True)
        spent = f"{time.monotonic() - begun:.0f} s"
        print(f"{name}: {len(made)} of {total} mutants, {len(made) - len(left)} found, {spent}", flush=True)
        code |= left != set(listed) & {mutant.name for mutant in made}
    return code


if __name__ == "__main__":
    sys.exit(main())
