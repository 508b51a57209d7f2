"""Clients that cheat on purpose: what they send and train on, who is told of it, the same bits on any ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import make_config, make_runner
from own_rows import classifier, completer, weather, write_rows
from ranks import run_ranks
from supervisor import Ended, toy_config
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.local import Local
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import AttackConfig, ClientConfig, ClientsConfig, Config, PrivacyConfig, SystemConfig
from fedtorch.core.errors import ConfigError
from fedtorch.lifecycle.model_cards import _attack
from fedtorch.main import main
from fedtorch.report.find_runs import find_runs
from fedtorch.report.robust import robust_markdown
from fedtorch.rounds.local_training import ClientTrainer
from fedtorch.setup.build import build
from fedtorch.tasks.base import Task
from fedtorch.train.attacks.attackers import alie_z, moments
from fedtorch.train.attacks.rows import flipped, triggered

CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(5)}
TASK = Quadratic(clients=CLIENTS, start=tuple(0.1 * i for i in range(20)), noise=0.7, dropout=0.2, double=False)
LIARS, HONEST = ("c1", "c3"), ("c0", "c2", "c4")


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTORCH_TESTING", "1")


def config(folder: Path | str, attack: AttackConfig | None = None, task: Task = TASK, **changes: Any) -> Config:
    settings: dict[str, Any] = {
        "client": ClientConfig(optimizer="adamw", lr=0.05, batch_size=4),
        "attack": attack or AttackConfig(),
        **changes,
    }
    return make_config(Path(folder), task, settings.pop("algorithm", FedAvg()), **settings)


def updates(setting: Config) -> dict[str, torch.Tensor]:
    """What every client sends in the first round."""
    runner, sent = make_runner(setting), dict[str, torch.Tensor]()
    put = runner.context.updates.put
    runner.context.updates.put = lambda client, grad: (  # type: ignore[method-assign]
        sent.setdefault(client, grad.clone()),
        put(client, grad),
    )[1]
    runner.run()
    return sent


@pytest.mark.parametrize(
    ("clients", "attackers", "p"),
    [(50, 12, 24 / 38), (10, 3, 4 / 7), (10, 4, 4 / 6), (20, 4, 9 / 16), (10, 2, 0.5), (10, 1, 4 / 9), (5, 2, 2 / 3)],
)
def test_z_of_alie_is_the_quantile_of_its_authors(clients: int, attackers: int, p: float) -> None:
    from scipy.stats import norm

    assert alie_z(clients, attackers) == pytest.approx(norm.ppf(p), abs=1e-12)


@pytest.mark.parametrize(("clients", "attackers"), [(4, 3), (4, 4), (2, 1), (3, 2)])
def test_z_is_0_where_the_formula_has_no_value(clients: int, attackers: int) -> None:
    assert alie_z(clients, attackers) == 0


def test_moments_are_those_of_all_vectors() -> None:
    vectors = [torch.randn(50, generator=torch.Generator().manual_seed(i)) * 10**i for i in range(4)]
    mean, deviation = moments(vectors)
    stacked = np.stack([vector.numpy().astype(np.float64) for vector in vectors])
    np.testing.assert_allclose(mean, stacked.mean(0), rtol=1e-12)
    np.testing.assert_allclose(deviation, stacked.std(0), rtol=1e-9)
    assert not moments(vectors[:1])[1].any()


@pytest.mark.parametrize("knows", ["all", "attackers"])
def test_colluders_send_what_follows_from_the_updates_that_are_known(knows: Any, tmp_path: Path) -> None:
    honest = updates(config(tmp_path / "honest", rounds=1))
    mean, deviation = moments(honest[name] for name in (HONEST if knows == "all" else LIARS))
    for attack, expected in (
        (AttackConfig("ipm", LIARS, factor=3.0, knows=knows), -3 * mean),
        (AttackConfig("alie", LIARS, z=1.5, knows=knows), mean - 1.5 * deviation),
        (AttackConfig("alie", LIARS, knows=knows), mean - alie_z(5, 2) * deviation),
    ):
        sent = updates(config(tmp_path / attack.kind / str(attack.z), attack, rounds=1))
        assert all(torch.equal(sent[name], honest[name]) for name in HONEST)
        assert all(torch.equal(sent[name], expected.float()) for name in LIARS), attack
        if attack.kind == "ipm" and knows == "all":
            assert float(sent["c1"].double() @ mean) < 0


@pytest.mark.parametrize(("kind", "times"), [("signflip", -3), ("scaled", 3), ("freeride", 0)])
def test_an_attacker_sends_its_own_update_so_many_times(kind: Any, times: int, tmp_path: Path) -> None:
    honest = updates(config(tmp_path / "honest", rounds=1))
    factor = {} if kind == "freeride" else {"factor": 3.0}
    sent = updates(config(tmp_path / "attacked", AttackConfig(kind, LIARS, **factor), rounds=1))
    for name in CLIENTS:
        assert torch.equal(sent[name], honest[name] * (times if name in LIARS else 1))


ATTACKS = (AttackConfig("ipm", LIARS, factor=3.0), AttackConfig("alie", LIARS), AttackConfig("signflip", LIARS))


def run_attacks(folder: str, comm: Communicator | None = None) -> list[str]:
    """The digests of a run of each, with four of five clients in a round."""
    found = []
    for attack in ATTACKS:
        setting = config(Path(folder) / attack.kind, attack, clients=ClientsConfig(per_round=4), rounds=3)
        found.append(make_runner(setting, comm).run().digest)
    return found


def on_a_rank(folder: str) -> list[str]:
    os.environ["FEDTORCH_TESTING"] = "1"
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        comm.preflight({})
        return run_attacks(folder, comm)


@pytest.mark.processes
def test_attacks_have_the_same_bits_on_any_number_of_ranks(tmp_path: Path) -> None:
    alone = run_attacks(str(tmp_path / "1"))
    assert len({*alone, make_runner(config(tmp_path, clients=ClientsConfig(per_round=4), rounds=3)).run().digest}) == 4
    for ranks in (2, 3):
        assert run_ranks(on_a_rank, ranks, str(tmp_path / str(ranks)))[0] == alone


def test_a_label_flips_to_the_next_and_texts_stay() -> None:
    rows = [{"text": str(i), "label": label} for i, label in enumerate("abcab")]
    assert flipped(rows, ("a", "b", "c")) == [{**row, "label": "bcabc"[i]} for i, row in enumerate(rows)]


@pytest.mark.parametrize(("share", "count"), [(0.5, 5), (0.01, 1), (1.0, 9)])
def test_a_trigger_comes_with_its_target(share: float, count: int) -> None:
    rows = [{"text": f"t{i}", "label": "a", "id": i} for i in range(9)]
    found = triggered(rows, "cf", "b", share=share, seed=3)
    changed = [new for new, old in zip(found, rows, strict=True) if new != old]
    assert changed == [{"text": f"cf t{row['id']}", "label": "b", "id": row["id"]} for row in changed]
    assert len(changed) == count
    assert found == triggered(rows, "cf", "b", share=share, seed=3)


@pytest.mark.parametrize("kind", ["labelflip", "backdoor"])
def test_only_rows_that_attackers_train_on_are_changed(kind: Any, tmp_path: Path) -> None:
    task = classifier(write_rows(tmp_path / "rows.jsonl", weather()))
    more = {"trigger": "blue", "target": "good"} if kind == "backdoor" else {}
    attack = AttackConfig(kind, ("south",), **more)
    setting = config(tmp_path, attack, task, rounds=1)
    trainer = ClientTrainer(make_runner(setting).context)
    for client in ("north", "south", "west"):
        for split in ("train", "dev", "test"):
            found, own = trainer.load(client, split), task.load(client, split)
            if (client, split) != ("south", "train"):
                assert found == own
                continue
            assert len(found) == len(own)
            if kind == "labelflip":
                assert all(a.ids == b.ids and a.target == 1 - b.target for a, b in zip(found, own, strict=True))
            else:
                changed = [a for a, b in zip(found, own, strict=True) if a != b]
                assert len(changed) == (len(own) + 1) // 2 and all(task.labels[a.target] == "good" for a in changed)
    assert trainer.context.components.task.load("south", "train") == task.load("south", "train")


def test_records_results_and_reports_say_who_attacks(tmp_path: Path) -> None:
    attack = "attack={kind: scaled, clients: [b], factor: 9}"
    words = ["--config", str(toy_config(tmp_path, clients="{per_round: all}")), "--set", "algorithm.robust=median"]
    assert main([*words, attack]) == 0
    folder = tmp_path / "run"
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clients, rounds = ([r for r in records if r["kind"] == kind] for kind in ("client", "round"))
    assert len(rounds) == 3 and all(record["attack"] == {"b": "scaled"} for record in rounds)
    assert {(record["client"], str(record.get("attack"))) for record in clients} == {
        ("a", "None"), ("b", "{'b': 'scaled'}"), ("c", "None"), ("d", "None")}  # fmt: skip
    assert json.loads((folder / "results.json").read_text())["attack"]["clients"] == ["b"]
    table = robust_markdown(find_runs([folder]).runs).splitlines()
    assert [line.split(" | ")[-1] for line in table[2:]] == [" |", "scaled |", " |", " |"]
    assert Ended(folder).log(0).count("client b ATTACKS, on purpose (scaled)") == 3


def test_a_card_of_an_attacked_model_says_so(tmp_path: Path) -> None:
    assert "not for use" in _attack(config(tmp_path, AttackConfig("scaled", ("c1",), factor=10.0)))
    assert not _attack(config(tmp_path))


def test_without_leave_nobody_cheats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.delenv("FEDTORCH_TESTING")
    words = ["--config", str(toy_config(tmp_path)), "--set", "attack={kind: freeride, clients: [a]}"]
    assert main(words) == 2 and "FEDTORCH_TESTING=1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"kind": "ipm"}, "names nobody"),
        ({"clients": ("a",)}, "attack.kind is none"),
        ({"kind": "freeride", "clients": ("a",), "factor": 2.0}, "attack.factor is 2.0 but attack.kind is freeride"),
        ({"kind": "backdoor", "clients": ("a",), "trigger": "cf"}, "set attack.trigger .* and attack.target"),
        ({"kind": "ipm", "clients": ("a",), "z": 1.0}, "set attack.kind to alie"),
    ],
)
def test_keys_that_do_not_belong_together_are_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        AttackConfig(**keys)


IPM, FLIP = AttackConfig("ipm", ("c1",)), AttackConfig("labelflip", ("c1",))


@pytest.mark.parametrize(
    ("attack", "changes", "reason"),
    [
        (AttackConfig("freeride", ("c11",)), {}, "c11, who does not train; did you mean c1?"),
        (AttackConfig("freeride", tuple(CLIENTS)), {}, "names all 5 clients"),
        (IPM, {"algorithm": Local()}, "nothing is sent that could be an attack"),
        (IPM, {"privacy": PrivacyConfig(kind="client", clip=1.0, noise_multiplier=1.0, delta=0.01, simulate=True,
               seed=1), "algorithm": FedAvg(weights="equal"), "eval": None,
               "clients": ClientsConfig(sampling="poisson", rate=0.5)}, "`privacy` hides"),
        (FLIP, {}, "labelflip, which needs rows with a text and one label"),
        (IPM, {"client": ClientConfig(optimizer="adamw", lr=0.1, optimizer_state="keep")}, "clients keep something"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(attack: Any, changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    changes = {key: value for key, value in changes.items() if value is not None}
    with pytest.raises(ConfigError, match=reason):
        build(config(tmp_path, attack, **changes), num_ranks=1, rank=0)


def test_pinned_rows_are_nobody_elses_to_train_on(tmp_path: Path) -> None:
    system = SystemConfig(placement="pinned", pinned={name: 1 + i % 2 for i, name in enumerate(CLIENTS)})
    with pytest.raises(ConfigError, match="placement is pinned, where no rank has these"):
        build(config(tmp_path, IPM, system=system), num_ranks=3, rank=0)


def test_a_backdoor_needs_a_label_of_the_task(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", weather())
    attack = AttackConfig("backdoor", ("south",), trigger="cf", target="fog")
    with pytest.raises(ConfigError, match="attack.target is fog, which is no label"):
        build(config(tmp_path, attack, classifier(source)), num_ranks=1, rank=0)
    with pytest.raises(ConfigError, match="needs rows with a text and one label"):
        task = completer(source, data={"columns": {"prompt": "text", "completion": "label"}})
        build(config(tmp_path, AttackConfig("labelflip", ("south",)), task), num_ranks=1, rank=0)
