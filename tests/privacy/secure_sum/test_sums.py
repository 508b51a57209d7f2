"""What is refused with a secure sum, what is said of it, and that a round's sum is opened once."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from torch import Tensor
from toy import Quadratic

from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.config.schema import ClientsConfig, SystemConfig
from fedtorch.core.errors import ConfigError, RefusedUpdatesError
from fedtorch.core.update import Report
from fedtorch.planning.dry_run import describe
from fedtorch.planning.promise import describe_public_sum
from fedtorch.privacy.public_sum import Masking, PublicSum, exact_sum
from fedtorch.privacy.secure_sum.openings import Openings
from fedtorch.privacy.secure_sum.terms import BrokenProtocolError, TooFewPartiesError
from fedtorch.privacy.settings import AdaptiveClip, MovingClip, PrivacyConfig, SecureSum
from fedtorch.setup.build import build

TASK = Quadratic(clients={f"c{i}": (1.0, i / 3, 4) for i in range(6)}, start=(0.3, -0.7, 1.0), double=False)
SECURE = PrivacyConfig(clip=0.5, secure_sum=SecureSum())


def secure(folder: Path, algorithm: Any = None, **changes: Any) -> Any:
    return make_config(folder, TASK, algorithm or FedAvg(weights="equal"), **{"privacy": SECURE, **changes})


@pytest.mark.parametrize(
    ("changes", "ranks", "reason"),
    [
        ({}, 1, "there are 0 workers beside the server"),
        ({}, 3, "there are 2 workers beside the server; of the sum of two each knows the other's part"),
        ({"system": SystemConfig(server_works=True)}, 5, "system.server_works is true"),
        ({"system": SystemConfig(exchange="send")}, 5, "system.exchange is send"),
        ({"system": SystemConfig(exchange="reduce")}, 5, "system.exchange is reduce"),
        ({"algorithm": FedAvg()}, 5, "weighs clients by size"),
        ({"algorithm": FedAvg(weights="lorar")}, 5, "weighs clients by lorar"),
        ({"algorithm": FedAvg(weights="equal", robust={"name": "median"})}, 5, "combines updates in a way of its own"),
        ({"algorithm": Scaffold(weights="equal")}, 5, "weighs clients in a way of its own"),
        ({"algorithm": FedAssistant(payload="delta")}, 5, "compressed messages|combines updates"),
        ({"clients": ClientsConfig(max_update_norm=1.0)}, 5, "clients.max_update_norm is set"),
        ({"clients": ClientsConfig(max_norm_to_median=2.0)}, 5, "clients.max_norm_to_median is set"),
        ({"clients": ClientsConfig(per_round=2, sampling="size_proportional")}, 5, "draws clients more than once"),
        ({"paradigm": "local"}, 5, "paradigm is local"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], ranks: int, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=reason):
        build(secure(tmp_path, **changes), num_ranks=ranks, rank=0)


def test_keys_that_belong_together() -> None:
    with pytest.raises(ConfigError, match="privacy.clip, which fixes its scale, is not"):
        PrivacyConfig(secure_sum=SecureSum())
    with pytest.raises(ConfigError, match="privacy.clip moves but privacy.kind is none"):
        PrivacyConfig(clip=MovingClip(AdaptiveClip()), secure_sum=SecureSum())


def test_a_clip_without_a_use_and_a_public_scale_without_a_clip_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="privacy.clip is set but privacy.kind is none"):
        build(secure(tmp_path, privacy=PrivacyConfig(clip=1.0)), num_ranks=1, rank=0)
    public = {"privacy": PrivacyConfig(), "system": SystemConfig(sum_scale="public")}
    with pytest.raises(ConfigError, match="privacy.clip, which it follows from, is not set"):
        build(secure(tmp_path, **public), num_ranks=1, rank=0)


def test_the_dry_run_says_what_becomes_of_what(tmp_path: Path) -> None:
    built = build(secure(tmp_path), num_ranks=5, rank=0)
    said = describe(built, num_ranks=5)
    assert describe_public_sum(built) in said
    for words in ("of 4 workers, which are the parties; 3 must", "kept by the worker: updates, their norms", "Lorar"):
        assert words in said
    plain = build(make_config(tmp_path, TASK), num_ranks=5, rank=0)
    assert not describe_public_sum(plain) and "secure sum:" not in describe(plain, num_ranks=5)


def test_the_plain_mean_at_a_public_scale_is_that_of_clipped_updates(tmp_path: Path) -> None:
    mechanism = PublicSum(1.0, 2)
    first, second = torch.tensor([3.0, 4.0]), torch.tensor([0.25, -0.5])
    report = mechanism.outgoing(first, Report("a"))
    mechanism.outgoing(second, report)
    assert torch.allclose(first, torch.tensor([0.6, 0.8]), atol=1e-6) and second.tolist() == [0.25, -0.5]
    assert float(first.double().norm()) <= 1.0
    config = secure(tmp_path, privacy=PrivacyConfig(clip=0.01), system=SystemConfig(sum_scale="public"))
    assert make_runner(config).run().digest != make_runner(make_config(tmp_path / "o", TASK)).run().digest


def test_reports_of_a_secure_sum_have_no_norm_and_no_loss() -> None:
    report = Report("a", examples=3, steps=2, loss_mean=1.5, norm=2.0, max_abs=1.0, curve=(1.0,), extra={"x": 1.0})
    told = PublicSum(1.0, 3, Masking(0.7, Openings(None))).reported(report)
    assert told == Report("a", examples=3, steps=2)
    assert PublicSum(1.0, 3).reported(report) == report


@dataclass
class Asked:
    """Updates of some clients, as far as a sum looks at them."""

    names: tuple[str, ...]
    answers: bool = True
    round: int = 0
    size: int = 2
    asked: list[str] = field(default_factory=list)

    @property
    def reports(self) -> list[Report]:
        return [Report(name) for name in self.names]

    def zeros(self) -> Tensor:
        return torch.zeros(self.size, dtype=torch.float64)

    def masked_sum(self, exponent: int, limit: float, masking: Masking, before_opening: Any) -> Tensor:
        before_opening()
        self.asked += self.names
        if not self.answers:
            raise TooFewPartiesError("1 of 3 parties are left; 2 are needed")
        return torch.tensor([len(self.names), 7.0], dtype=torch.float64)


def test_a_sum_that_was_opened_is_given_again_and_never_one_of_fewer(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "run" / "openings.jsonl"
    summed = partial(exact_sum, exponent=0, clip=1.0, masking=Masking(0.7, Openings(path)))
    assert summed(Asked(("a", "b", "c"))).tolist() == [3, 7]
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]
    again = Asked(("a", "b", "c"))
    assert summed(again).tolist() == [3, 7] and not again.asked
    # after a restart: of the same clients once more, of fewer not
    same, fewer = Asked(("a", "b", "c")), Asked(("a", "c"))
    assert exact_sum(same, 0, 1.0, Masking(0.7, Openings(path))).tolist() == [3, 7] and same.asked
    masking = Masking(0.7, Openings(path))
    with pytest.raises(RefusedUpdatesError) as refused:
        exact_sum(fewer, 0, 1.0, masking)
    assert not fewer.asked and set(refused.value.reasons) == {"a", "c"}
    assert "opened with other clients before" in refused.value.reasons["a"]
    settled = masking.openings.settled((0, 0))
    assert settled is not None and not settled.clients
    assert exact_sum(Asked(()), 0, 1.0, masking).tolist() == [0, 0]
    assert exact_sum(Asked(("a", "c"), round=1), 0, 1.0, masking).tolist() == [2, 7]


def test_another_attempt_at_a_round_has_a_sum_of_its_own_in_one_process_and_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "openings.jsonl"
    masking = Masking(0.7, Openings(path))
    assert exact_sum(Asked(("a", "b", "c")), 0, 1.0, masking).tolist() == [3, 7]
    masking.attempt = 1
    assert PublicSum(1.0, 3, masking).settled(0) is None
    other = Asked(("a", "d"))
    assert exact_sum(other, 0, 1.0, masking).tolist() == [2, 7] and other.asked == ["a", "d"]
    assert PublicSum(1.0, 3, masking).settled(0) == {"a", "d"}
    known = Openings(path)
    assert known.may_open((0, 1), ["a", "d"]) and not known.may_open((0, 1), ["a", "b", "c"])
    assert known.may_open((0, 0), ["a", "b", "c"]) and known.may_open((0, 2), ["x"])


def test_a_line_of_an_earlier_version_is_of_the_first_attempt(tmp_path: Path) -> None:
    (tmp_path / "openings.jsonl").write_text('{"round": 3, "clients": ["a", "b"]}\n')
    known = Openings(tmp_path / "openings.jsonl")
    assert known.may_open((3, 0), ["b", "a"]) and not known.may_open((3, 0), ["a"]) and known.may_open((3, 1), ["a"])


def test_without_enough_answers_the_round_is_given_up_and_named() -> None:
    masking = Masking(0.7, Openings(None))
    with pytest.raises(RefusedUpdatesError) as refused:
        exact_sum(Asked(("a", "b", "c"), answers=False), 0, 1.0, masking)
    assert "given up: 1 of 3 parties are left" in refused.value.reasons["b"]
    assert PublicSum(1.0, 3, masking).settled(0) == frozenset() and PublicSum(1.0, 3, masking).settled(1) is None


def test_the_threshold_is_of_those_with_whom_a_round_began() -> None:
    masking = Masking(0.7, Openings(None))
    assert masking.needed(0, range(10)) == masking.needed(0, range(8)) == 7
    assert masking.needed(1, range(8)) == 6


def test_a_worker_knows_the_parties_and_the_least_threshold_itself() -> None:
    some, all_of = Masking(0.7, Openings(None)), Masking(0.7, Openings(None), (1, 3, 5))
    assert some.parties([3, 2, 2, 9], (1, 2, 3)) == [2, 3] and all_of.parties([2], (1, 2, 3)) == [1, 3]
    some.check(0, [1, 2, 3, 4], 3, (1, 2, 3, 4))
    some.check(0, [1, 2, 3, 4], 4, (1, 2, 3, 4))  # who knows of an earlier loss may ask for more
    with pytest.raises(BrokenProtocolError, match="names the threshold 2 of 3 parties .* 0.7 comes to 3"):
        some.check(0, [1, 2, 3], 2, [1, 2, 3])  # a worker was lost in the round: it is still three of four
    for said in ([1, 2], [1, 2, 3, 7], [2, 1, 3], []):
        with pytest.raises(BrokenProtocolError, match=r"names the parties .*, but they are \[1, 2, 3\]; nothing is"):
            some.check(1, said, 3, [1, 2, 3])


def test_a_line_in_which_a_server_died_is_not_in_the_way_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "openings.jsonl"
    Openings(path).open((0, 0), ["a", "b"])
    with path.open("a") as file:
        file.write('{"round": 1, "cli')  # nobody was asked for a share
    again = Openings(path)
    assert again.may_open((1, 0), ["a"]) and not again.may_open((0, 0), ["a"])
    again.open((1, 0), ["b"])
    known = Openings(path)
    assert known.may_open((1, 0), ["b"]) and not known.may_open((1, 0), ["a"]) and not known.may_open((0, 0), ["b"])
    assert path.stat().st_mode & 0o777 == 0o600
