"""The gate of a silo: a process that alone holds its key, and signs only what the site's policy lets out.

fedtorch gate --policy FILE --socket NUMBER

`fedtorch join --policy FILE` starts it, over a socket that it has opened.
"""

from __future__ import annotations

import argparse
import ctypes
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtorch.core.errors import FedtorchError, PolicyError, print_error
from fedtorch.lifecycle.gate_mail import in_mail
from fedtorch.privacy.record.silo import Step
from fedtorch.trust.keys import PrivateKey, read_key
from fedtorch.trust.policy.asked import Asked, tuples
from fedtorch.trust.policy.decisions import Decisions
from fedtorch.trust.policy.file import Policy, read_policy
from fedtorch.trust.policy.gate import Gate, Side
from fedtorch.trust.policy.remote import serve

_SET_DUMPABLE = 4  # PR_SET_DUMPABLE of <linux/prctl.h>
_DTYPES = ("float32", "float64")


@dataclass
class Answers:
    """Answers of a gate; the first questions tell it whose gate it is."""

    policy: Policy
    """As this process has read it."""
    gate: Gate | None = None
    """Once it has begun."""
    key: PrivateKey | None = None
    """Once it is known which."""

    def __call__(self, question: dict[str, Any], beside: memoryview) -> dict[str, Any]:
        """Answer a question.

        Raises:
            FedtorchError: the policy does not allow it, or it cannot be.
        """
        asked = question.get("ask")
        if asked == "key" and self.key is None:
            self.key = read_key(Path(question["path"]))
            return self._who()
        if asked == "who" and self.key is not None:
            return self._who()
        if asked == "begin" and self.gate is None and self.key is not None:
            return self._begin(question)
        if asked == "sign" and self.gate is not None:
            length = int(question["length"])
            return {"signature": self.gate.sign(bytes(beside[:length]), bytes(beside[length:])).hex()}
        if asked == "update" and self.gate is not None and question["dtype"] in _DTYPES:
            vector = np.frombuffer(beside, dtype=question["dtype"])
            return {"root": self.gate.pass_update(str(question["client"]), int(question["round"]), vector)}
        if self.gate is not None and (found := self._of_part(self.gate, question, beside)) is not None:
            return found
        raise PolicyError(f"the gate does not answer {str(asked)[:20]!r} now")

    def _of_part(self, gate: Gate, question: dict[str, Any], beside: memoryview) -> dict[str, Any] | None:
        """Answer a question about what leaves of updates; None: it is no such question."""
        asked, masked = question.get("ask"), gate.masked
        if asked == "part":
            terms = [(str(client), float.fromhex(weight)) for client, weight in question["terms"]]
            scale, exchange = int(question["exponent"]), str(question["exchange"])
            gate.begin_part(str(question["way"]), int(question["round"]), terms, scale, exchange)
        elif asked == "window" and gate.part is not None:
            found = gate.part.window(int(question["count"]), int(question["place"]))
            if len(beside):
                beside[:] = found.view(np.uint8).data
        elif asked == "noise":
            blocks = [(int(start), int(stop), float(deviation)) for start, stop, deviation in question["blocks"]]
            return {"digest": gate.add_noise(Step(**question["step"]), np.frombuffer(beside, np.float64), blocks)}
        elif asked == "finish":
            sent, salt, tags = gate.finish_part()
            if len(beside):
                beside[:] = tags.view(np.uint8).data
            return {"sent": sent, "salt": salt.hex()}
        elif asked == "masks":
            gate.begin_masks(question["terms"])
        elif asked == "step" and masked is not None:
            return masked.do(str(question["step"]), question["about"])
        elif asked == "meet":
            return {"word": gate.meet()}
        else:
            return None if gate.tags is None else gate.tags.answer(question, beside)
        return {}

    def _who(self) -> dict[str, Any]:
        assert self.key is not None
        return {"path": str(self.key.path), "public": self.key.public.hex()}

    def _begin(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self.key is not None
        side = Side(**{name: tuples(value) for name, value in question["side"].items()})
        asked = Asked.read(question["asked"])
        decisions = Decisions(Path(question["folder"]))
        self.gate = Gate(self.key, self.policy, side, asked, decisions, in_mail)
        with suppress(PolicyError):  # `join` says so; from now on the gate signs a refusal and nothing else
            self.gate.begin(is_new=bool(question["is_new"]))
        return {"is_refused": self.gate.is_closed}


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch gate") -> int:
    """Be a gate until nobody has the other end of the socket; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", type=Path, required=True, metavar="FILE", help="of this site")
    parser.add_argument("--socket", type=int, required=True, metavar="NUMBER", help="of the open socket to `join`")
    args = parser.parse_args(arguments)
    try:
        answers, connection = Answers(read_policy(args.policy)), socket.socket(fileno=args.socket)
        if sys.platform == "linux":  # other processes of the user can then not read its memory
            ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0)
        serve(connection, answers)
    except OSError as error:
        print(f"{prog}: --socket is {args.socket}, which is no open socket ({error.strerror})", file=sys.stderr)
        return FedtorchError.exit_code
    except FedtorchError as error:
        return print_error(error, prog)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
