"""`fedtorch audit`: what is found is what the update holds, the page promises nothing, no text is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from own_rows import weather, write_rows

import fedtorch
from fedtorch.audit.attacks import seen_by_server
from fedtorch.audit.membership import auc, found_at, roc
from fedtorch.audit.subject import AuditOptions
from fedtorch.cli.__main__ import main
from fedtorch.privacy.settings import PrivacyConfig

pytestmark = pytest.mark.long

CONFIG = """
rounds: 1
run: {name: toy, dir: runs/toy}
task:
  name: text_classification
  model: {random: bert, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16,
          hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0}
  max_length: 32
  data: {source: rows.jsonl, clients: {by: home}, splits: {dev: 0.2, test: 0.2}, tokenizer_size: 270}
client: {optimizer: sgd, lr: 0.1, batch_size: 64, epochs: 1}
eval: {every: 1}
checkpoint: {every: 1}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run."""
    folder = tmp_path_factory.mktemp("audit")
    write_rows(folder / "rows.jsonl", weather(90))
    (folder / "bad.jsonl").write_text("{\n")
    (folder / "toy.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", "--config", "toy.yaml", "--set", "track.tensorboard=false"]) == 0
    return folder


def audited(folder: Path, patch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    patch.chdir(folder)
    assert main(["audit", *arguments, "--out", "found"]) == 0
    record = json.loads((folder / "found" / "audit.json").read_text())
    return {finding["attack"]: finding for finding in record["findings"]}


def test_an_update_names_every_token_of_its_client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(path.read_bytes() for path in (folder / "runs").rglob("*") if path.is_file())
    found = audited(folder, monkeypatch, "runs/toy", "--clip", "0.1", "--noise", "1", "--canaries", "20")
    rows = {row["channel"]: row for row in found["rows"]["figures"]}
    assert rows["update"]["recovered"] == rows["update"]["right"] == 1.0
    assert rows["sum"]["recovered"] == 1.0
    assert rows["sum, clipped, noised"]["named"] > rows["sum, clipped, noised"]["tokens"]  # every row is named
    assert found["span"]["figures"][0]["width"] == 16
    assert 0 <= found["membership"]["figures"][0]["auc"] <= 1
    figures = {row["client"]: row for row in found["canaries"]["figures"]}
    assert set(figures) == {"bound", "fit", "spread"} and not any(row["flagged"] for row in figures.values())
    assert figures["fit"]["low"] <= figures["fit"]["found"] <= figures["fit"]["high"]
    assert figures["bound"]["claimed"] == pytest.approx(6.573, abs=0.01)  # two rounds of everybody, z 1
    assert sorted(path.read_bytes() for path in (folder / "runs").rglob("*") if path.is_file()) == before


def test_a_run_with_privacy_is_attacked_without_a_release(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own clip and noise are the defences."""
    pytest.importorskip("dp_accounting")
    monkeypatch.chdir(folder)
    promise = "privacy={kind: client, clip: 0.25, noise_multiplier: 2.0, delta: 1.0e-3}"
    sampling = ["clients.sampling=poisson", "clients.rate=0.5", "algorithm={name: fedavg, weights: equal}"]
    words = ["--set", "run.dir=runs/private", "track.tensorboard=false", "eval.every=0", promise, *sampling]
    assert main(["run", "--config", "toy.yaml", *words]) == 0
    ledger = (folder / "runs" / "private" / "privacy" / "ledger.jsonl").read_bytes()
    found = audited(folder, monkeypatch, "runs/private", "--attacks", "rows", "canaries", "--canaries", "20")
    assert (folder / "runs" / "private" / "privacy" / "ledger.jsonl").read_bytes() == ledger
    rows = {row["channel"]: row for row in found["rows"]["figures"]}
    assert rows["update"]["recovered"] == 1.0 and "sum, clipped, noised" in rows
    assert 1 < found["canaries"]["figures"][0]["claimed"] < 2.5
    assert "nothing that contradicts it" in found["canaries"]["said"]


def test_of_a_secure_sum_it_is_said_that_the_server_sees_sums_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The single update is attacked all the same, as its worker sees it; the sum is what the server has."""
    (folder / "masked.yaml").write_text(
        f"{CONFIG}\nprivacy: {{clip: 0.25, secure_sum: {{threshold: 0.7}}}}\n"
        "algorithm: {name: fedavg, weights: equal}\n"
    )
    told = "a round's sum, who took part, of each its rows, steps and seconds, and the scores of evaluations; "
    for config, seen in (("toy.yaml", "each update"), ("masked.yaml", f"{told}an update its worker alone")):
        found = audited(folder, monkeypatch, "--config", config, "--attacks", "rows")
        record = json.loads((folder / "found" / "audit.json").read_text())
        assert seen in json.dumps(record) and seen in (folder / "found" / "audit.html").read_text().replace(
            "&#x27;", "'"
        )
        channels = [row["channel"] for row in found["rows"]["figures"]]
        assert {"update", "sum"} <= set(channels)
        assert ("sum, clipped" in channels) == (config == "masked.yaml")  # the clip is its own


def test_of_a_secure_sum_with_noise_the_server_is_told_less_and_still_sees_the_exact_sum() -> None:
    options = AuditOptions(hidden=True, promised=PrivacyConfig())
    assert seen_by_server(options) == "a round's sum before its noise, and who was drawn; an update its worker alone"


def test_no_text_and_no_promise_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = audited(folder, monkeypatch, "--config", "toy.yaml", "--attacks", "rows", "membership", "secrets")
    assert "shown" not in found["rows"]
    assert "no answers in tokens" in found["secrets"]["skipped"]
    assert "name the folder of a run" in found["membership"]["skipped"]
    page = (folder / "found" / "audit.html").read_text()
    assert "storm" not in page
    assert "safe" not in page.replace("unsafe-inline", "")
    assert "no proof" in page
    shown = audited(folder, monkeypatch, "--config", "toy.yaml", "--attacks", "rows", "--show")
    assert len(shown["rows"]["shown"]["north"]) == shown["rows"]["figures"][0]["tokens"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name either"),
        (["nowhere"], "does not exist"),
        (["runs/toy", "--config", "toy.yaml"], "name either"),
        (["--config", "toy.yaml", "--set", "task.data.source=bad.jsonl"], "bad.jsonl"),
    ],
)
def test_what_cannot_be_attacked_is_named(
    arguments: list[str], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["audit", *arguments]) == (3 if "bad" in said else 2)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--noise", "1"], ["--clip", "-1"], ["--delta", "2"], ["--canaries", "1"]])
def test_wrong_options_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["audit", "x", *wrong])
    assert ended.value.code == 2


def test_membership_is_counted_by_hand() -> None:
    members, others = [1.0, 2.0, 3.0, 3.0], [2.0, 4.0]
    assert auc(members, others) == (2 + 1.5 + 1 + 1) / 8  # wins over both, one and a tie, one, one
    assert roc(members, others) == [(0.0, 0.0), (0.0, 0.25), (0.5, 0.5), (0.5, 1.0), (1.0, 1.0)]
    assert found_at(members, others, 0.01) == 0.25
    assert found_at(members, others, 0.5) == 1.0


def test_an_update_of_nothing_is_no_defence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = audited(folder, monkeypatch, "--config", "toy.yaml", "--set", "client.lr=0", "--attacks", "rows", "span")
    assert all("no client changes anything" in one["skipped"] for one in found.values())


def test_python_gets_what_the_command_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = audited(folder, monkeypatch, "runs/toy", "--attacks", "rows", "kv", "--clients", "2")
    threads, seed = torch.get_num_threads(), torch.get_rng_state()
    found = fedtorch.audit_run("runs/toy", ["rows", "kv"], clients=2)
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), seed)
    assert {name: one.record() for name, one in found.findings.items()} == written
    rows = found.findings["rows"]
    assert isinstance(rows, fedtorch.Finding) and rows.figures[0]["recovered"] == 1.0 and not rows.skipped
    assert "no two sides" in found.findings["kv"].skipped and "no two sides" in str(found)
    assert found.facts["rounds"] == 1 and "no proof" in found.warning
    again = fedtorch.audit_run(fedtorch.open_run("runs/toy"), ["rows"], clients=1, overrides={"client.lr": 0})
    assert "no client changes anything" in again.findings["rows"].skipped
    json_file, page = found.write(folder / "from_python")
    assert json.loads(json_file.read_text()) == json.loads((folder / "found" / "audit.json").read_text())
    assert page.read_text() == (folder / "found" / "audit.html").read_text()


def test_python_is_told_what_is_wrong_with_its_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "name either"),
        ({"run": "runs/toy", "config": "toy.yaml"}, "name either"),
        ({"run": "runs/toy", "attacks": ["row"]}, "no attack 'row'; there are rows, span"),
        ({"run": "runs/toy", "attacks": "rows"}, r"such as \['rows'\]"),
        ({"run": "runs/toy", "noise": 1.0}, "noise is 1.0 but clip"),
        ({"run": "runs/toy", "delta": 1.0}, "delta is 1.0"),
    ]
    for arguments, said in wrong:
        with pytest.raises(fedtorch.ConfigError, match=said):
            fedtorch.audit_run(**arguments)


@pytest.mark.processes
def test_canaries_go_through_what_else_the_run_promises(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clip that moves, a secure sum on ranks of its own; too few canaries for the former are said in a sentence."""
    pytest.importorskip("dp_accounting")
    pytest.importorskip("cryptography")
    promise = "{kind: client, clip: {adaptive: {start: 0.25}}, noise_multiplier: 2.0, delta: 1.0e-3, secure_sum: {}}"
    (folder / "moving.yaml").write_text(
        f"{CONFIG}\nprivacy: {promise}\nclients: {{sampling: poisson, rate: 1.0}}\n"
        "algorithm: {name: fedavg, weights: equal}\n"
    )
    words = ("--config", "moving.yaml", "--attacks", "canaries", "--canaries")
    found = audited(folder, monkeypatch, *words, "100")["canaries"]
    assert "nothing that contradicts it" in found["said"] and found["figures"][2]["found"] > 0.8
    few = audited(folder, monkeypatch, *words, "20")["canaries"]
    assert "with 20 canaries there is too little noise" in json.dumps(few)
