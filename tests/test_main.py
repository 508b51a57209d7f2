"""The command line, end to end: what it writes, and what it says to bad input before any group is made."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from prepared_files import seal
from ranks import expect_exit, run_ranks, start_ranks
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from fedtorch.config.load import load
from fedtorch.config.masking import mask_assignment
from fedtorch.core.client import ClientStore
from fedtorch.lifecycle import session
from fedtorch.main import main
from fedtorch.rounds.context import RoundContext

pytestmark = pytest.mark.long

TINY = """
run: {name: tiny, dir: DIR}
rounds: 2
task:
  name: text2sql
  data: DATA
  model: {d_model: 16, d_ff: 32, d_kv: 8, num_heads: 2, num_layers: 1}
  input_max_length: 40
  output_max_length: 4
algorithm: {name: fedavg, weights: lorar}
client: {optimizer: adamw, lr: 1e-3, batch_size: 4}
track: {progress: lines, tensorboard: false}
"""


@pytest.fixture
def config(tmp_path: Path, tiny_data: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.replace("DIR", str(tmp_path / "run")).replace("DATA", str(tiny_data)))
    return path


def run(config: Path, *overrides: str, options: tuple[str, ...] = ()) -> int:
    changes = ["--set", *overrides] if overrides else []
    return main(["--config", str(config), *changes, *options])


def results(config: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((config.parent / "run" / "results.json").read_text())
    return content


def test_a_run_leaves_everything_that_the_design_names(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "track.tensorboard=true") == 0
    folder = config.parent / "run"
    present = {path.name for path in folder.iterdir()}
    assert {
        "config.yaml",
        "env.json",
        "log.rank0.txt",
        "metrics.jsonl",
        "tensorboard",
        "checkpoints",
        "model",
    } <= present
    assert {"results.json", "status.json"} <= present
    assert folder.stat().st_mode & 0o077 == 0
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["code"], status["round"]) == ("done", 0, 2)
    assert {path.name for path in (folder / "tensorboard").iterdir()} >= {"client-north", "client-south", "server"}
    assert run(folder / "config.yaml", f"run.dir={config.parent / 'again'}") == 0  # its config is a valid input
    again = json.loads((config.parent / "again" / "results.json").read_text())
    assert again["digest"] == results(config)["digest"]
    assert "of 6" in capsys.readouterr().out  # never a score without the number of examples


def test_what_memory_need_not_hold_is_gone_at_the_end(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, seen = config.parent / "run" / "spill", []
    remove = RoundContext.remove_spill

    def looked(context: RoundContext) -> None:
        seen.append(sorted(path.name for path in folder.rglob("*.safetensors")))
        remove(context)

    monkeypatch.setattr(RoundContext, "remove_spill", looked)
    monkeypatch.setattr("fedtorch.rounds.context.ClientStore", lambda folder, memory: ClientStore(folder, 0))
    own = "eval.best=per_client"
    assert run(config, own) == 0
    assert len(seen) == 1 and len(seen[0]) == 3, "every client's state was there"
    assert not folder.exists()
    digest = results(config)["digest"]
    monkeypatch.setattr("fedtorch.rounds.context.ClientStore", ClientStore)
    assert run(config, own, options=("--resume", "never")) == 0 and not folder.exists()
    assert results(config)["digest"] == digest


def test_the_saved_model_loads_with_transformers_and_answers_alike(config: Path) -> None:
    assert run(config) == 0
    model = AutoModelForSeq2SeqLM.from_pretrained(config.parent / "run" / "model")
    tokenizer = AutoTokenizer.from_pretrained(config.parent / "run" / "model")
    ids = tokenizer("which river is longer than 30 ?", return_tensors="pt").input_ids
    assert ids.shape[1] > 5 and model(input_ids=ids, labels=ids).loss.isfinite()
    assert model.get_input_embeddings().weight.data_ptr() == model.lm_head.weight.data_ptr()


def test_a_model_that_cannot_be_saved_costs_no_result(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedtorch.tasks.text2sql.Text2SQL.save_model", refuse)
    assert run(config) == 0
    assert results(config)["digest"]
    assert "the model could not be saved" in (config.parent / "run" / "log.rank0.txt").read_text()


def test_a_finished_run_resumed_gives_the_same_result(config: Path) -> None:
    assert run(config) == 0
    first = results(config)
    assert run(config) == 0
    assert results(config)["digest"] == first["digest"]
    assert results(config)["clients"]["north"]["scores"] == first["clients"]["north"]["scores"]


def test_what_is_worth_knowing_about_the_data_is_said_once(config: Path) -> None:
    """With targets of at most 12 tokens no gold query survives, in any of nine splits."""
    log = config.parent / "run" / "log.rank0.txt"
    assert run(config, "compare={paradigm: local}", "rounds=1") == 0  # the companion has the same data
    assert log.read_text().count("about the data:") == 1
    for client, sizes in {"north": (12, 2, 2), "south": (6, 2, 2), "west": (3, 2, 2)}.items():
        splits = zip(("train", "dev", "test"), sizes, strict=True)
        ceilings = "; ".join(f"{split} 0.00 % of {size} (truncated {size})" for split, size in splits)
        assert f"\n  {client}: ceiling of exact match after encoding: {ceilings}\n" in log.read_text()
    assert run(config, "compare={paradigm: local}", "rounds=1") == 0  # resumed
    assert log.read_text().count("about the data:") == 1
    assert run(config, "rounds=1", options=("--resume", "never")) == 0
    assert log.read_text().count("about the data:") == 2


def test_nothing_is_said_about_data_that_survive_encoding(config: Path) -> None:
    assert run(config, "task.output_max_length=60", "rounds=1") == 0
    assert "about the data:" not in (config.parent / "run" / "log.rank0.txt").read_text()


def test_the_companion_run_is_trained_and_shown_beside_the_first(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, "compare={paradigm: local}") == 0
    out = capsys.readouterr().out
    assert "compare" in out or "local" in out
    companion = json.loads((config.parent / "run" / "compare" / "results.json").read_text())
    assert set(companion["clients"]) == {"north", "south", "west"}


def test_dry_run_shows_placement_traffic_and_memory_and_writes_nothing(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, options=("--dry-run", "--ranks", "3")) == 0
    out = capsys.readouterr().out
    assert out.startswith("placement: 3 clients on 2 workers") and "MiB down" in out and "memory per rank" in out
    assert "checkpoints: by the server's clock, and at the end; a crash costs at most about 60 s of work" in out
    assert len(out.splitlines()) == 14 and out.endswith("every key with its value: --dry-run=config\n")
    assert not (config.parent / "run").exists()


def test_a_dry_run_with_the_config_is_a_config_that_begins_with_the_same_lines(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, "rounds=7", options=("--dry-run=config", "--ranks", "3")) == 0
    out = capsys.readouterr().out
    assert out.startswith("# placement: 3 clients on 2 workers")
    (config.parent / "again.yaml").write_text(out)
    again = load(config.parent / "again.yaml")
    assert again == load(config, ["rounds=7"]) and again.rounds == 7


def test_ranks_without_clients_are_one_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, options=("--dry-run", "--ranks", "507")) == 0
    out = capsys.readouterr().out
    assert "\n  rank 4-506   0.0%  (idle)\n" in out and len(out.splitlines()) == 16


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ("algorithm.weigthing=size", 2, "did you mean"),
        ("rounds=many", 2, "rounds"),
        ("task.model.name=/nowhere/t5", 2, "/nowhere/t5"),
        ("task.data=/nowhere/data", 3, "is not a prepared folder"),
        ("clients.per_round=4", 2, "clients.per_round is 4 but the task `text2sql` has 3 clients"),
        ("per_client.nroth.lr=0.1", 2, "did you mean `north`"),
        ("algorithm.name=scaffold", 2, "needs plain SGD"),
        ("partition.private=[nothing.*]", 2, "matches none"),
        ("partition.private=['*']", 2, "nothing to exchange"),
        ("system.device=cuda", 2, "finds no GPU"),
        ("eval.select_by=accuracy", 2, "exact_match"),
    ],
)
def test_bad_settings_are_refused_with_what_to_do(
    change: str, code: int, message: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if change == "system.device=cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    overrides = [change, "algorithm.weights=equal"] if "scaffold" in change else [change]
    assert run(config, *overrides) == code
    assert message in capsys.readouterr().err


def test_a_missing_config_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err


@pytest.fixture
def copied(config: Path, tiny_data: Path, tmp_path: Path) -> Path:
    """A copy of the data that a test may spoil; the config uses it."""
    target = tmp_path / "copy"
    shutil.copytree(tiny_data, target)
    config.write_text(config.read_text().replace(str(tiny_data), str(target)))
    return target


def test_a_malformed_line_is_named_by_file_and_number(
    copied: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied / "south" / "train.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = '{"question": "half a line'
    path.write_text("\n".join(lines) + "\n")
    assert run(config) == 3
    error = capsys.readouterr().err
    assert f"{path}:4" in error and "half a line" not in error


def test_a_client_without_training_examples_takes_no_part(
    copied: Path, config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty(copied, "west")
    assert run(config) == 0
    assert results(config)["clients"]["west"]["examples"] == 0
    assert "west" in caplog.text or "west" in (config.parent / "run" / "log.rank0.txt").read_text()


def test_no_training_examples_at_all_is_an_error(
    copied: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for client in ("north", "south", "west"):
        empty(copied, client)
    assert run(config) == 3
    assert "none of the 3 clients has a training example" in capsys.readouterr().err


def empty(root: Path, client: str) -> None:
    (root / client / "train.jsonl").write_text("")
    seal(root)


def test_a_test_file_that_is_not_the_prepared_one_ends_the_run_before_training(
    copied: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied / "south" / "test.jsonl"
    path.write_text("")
    assert run(config) == 3
    assert f"{path} is not the file that" in capsys.readouterr().err


def test_a_model_that_no_machine_can_hold_is_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "task.model.d_model=2000000000", "task.model.d_ff=2000000000") == 2
    assert (
        "the model that `task` describes does not fit into this machine: with a tensor of [" in capsys.readouterr().err
    )


def test_a_rank_that_is_no_number_ends_the_run_with_4(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "x")
    assert run(config) == 4
    assert "environment variable RANK is 'x', expected a number" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", ["0", "-3"])
def test_a_dry_run_on_no_ranks_is_refused(config: Path, ranks: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(config, options=("--dry-run", "--ranks", ranks))
    assert caught.value.code == 2 and f"--ranks is {ranks}; give the number of ranks" in capsys.readouterr().err


def test_two_clients_of_one_name_are_refused(copied: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["clients"]["North"] = manifest["clients"]["north"]
    (copied / "manifest.json").write_text(json.dumps(manifest))
    assert run(config) == 3
    assert "North" in capsys.readouterr().err


def test_a_checkpoint_of_another_config_is_refused_field_by_field(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config) == 0
    assert run(config, "client.lr=0.5") == 8
    error = capsys.readouterr().err
    assert "client.lr" in error and "--resume" in error
    assert run(config, "client.lr=0.5", options=("--resume", "never")) == 0


def test_a_torn_checkpoint_is_passed_over_for_the_last_whole_one(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(config, "checkpoint.every=1") == 0
    digest = results(config)["digest"]
    torn = config.parent / "run" / "checkpoints" / "round_000002" / "server.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])
    assert run(config) == 0
    assert results(config)["digest"] == digest
    assert "DAMAGED" in (config.parent / "run" / "log.rank0.txt").read_text() + caplog.text


def as_rank(path: str, seed_of_last: int, start_s: int = 60) -> int:
    import os

    limits = "system.timeout=20", f"system.start_timeout={start_s}"
    last = os.environ["RANK"] == "2"
    return main(["--config", path, "--set", f"run.seed={seed_of_last if last else 0}", *limits])


@pytest.mark.processes
def test_three_ranks_give_the_bits_of_one_process(config: Path) -> None:
    assert run(config) == 0
    digest = results(config)["digest"]
    assert run_ranks(as_rank, 3, str(config_in(config, "run3")), 0) == [0, 0, 0]
    assert json.loads((config.parent / "run3" / "results.json").read_text())["digest"] == digest


def config_in(config: Path, name: str) -> Path:
    path = config.parent / f"{name}.yaml"
    path.write_text(config.read_text().replace(str(config.parent / "run"), str(config.parent / name)))
    return path


@pytest.mark.processes
def test_ranks_with_different_configs_end_before_any_group_is_made(config: Path) -> None:
    outcomes = expect_exit(as_rank, 3, str(config), 1)
    assert [outcome.result for outcome in outcomes] == [4, 4, 4]


@pytest.mark.processes
def test_a_taken_port_is_named(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ranks = start_ranks(as_rank, 2, str(config), 0, 2, environ={"MASTER_PORT": str(port)})
        outcomes = ranks.join(60)
        assert [outcome.result for outcome in outcomes] == [4, 4], outcomes[1].error


@pytest.mark.parametrize("paradigm", ["local", "centralized"])
def test_a_companion_of_any_paradigm_runs_beside_and_resumes_from_a_path(
    paradigm: str, config: Path, tmp_path: Path
) -> None:
    compare = "compare={paradigm: " + paradigm + "}"
    assert run(config, compare) == 0
    first = results(config)["digest"]
    checkpoint = config.parent / "run" / "checkpoints" / "round_000002"
    again = f"run.dir={tmp_path / 'again'}"
    assert run(config, compare, again, options=("--resume", str(checkpoint))) == 0
    assert json.loads((tmp_path / "again" / "results.json").read_text())["digest"] == first
    assert run(config, compare, again) == 0


def test_secrets_are_masked_and_a_failed_start_leaves_a_private_folder(config: Path) -> None:
    assert run(config, "task.data=/nowhere", "run.name=x") == 3
    folder = config.parent / "run"
    assert folder.stat().st_mode & 0o077 == 0
    status = json.loads((folder / "status.json").read_text())
    assert status["code"] == 3 and "/nowhere" in status["reason"]
    assert run(config, "task.data=/nowhere", "run.name=y", "task.tokenizer=t") == 3
    assert "--set" in json.loads((folder / "status.json").read_text())["command"]


def test_size_proportional_sampling_wants_equal_weights(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sampling = ("clients.sampling=size_proportional", "clients.per_round=2")
    assert run(config, *sampling) == 2
    assert "set algorithm.weights to equal" in capsys.readouterr().err
    assert run(config, *sampling, "algorithm.weights=equal") == 0


def test_a_signal_while_data_are_read_loses_nothing(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = session.build_all

    def signalled(*args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR2)
        return build(*args, **kwargs)

    monkeypatch.setattr(session, "build_all", signalled)
    assert run(config) == 75
    status = json.loads((config.parent / "run" / "status.json").read_text())
    assert (status["state"], status["round"]) == ("interrupted", None)
    monkeypatch.setattr(session, "build_all", build)
    assert run(config) == 0


def test_a_launcher_says_how_a_run_is_continued(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = f"sbatch --array=3 'my file.sbatch' --config {config} --set rounds=1"
    monkeypatch.setenv("FEDTORCH_COMMAND", f"{told} track.token=12345 ")
    assert run(config, "rounds=1") == 0
    status = json.loads((config.parent / "run" / "status.json").read_text())
    assert status["command"] == f"{told} 'track.token=<masked>'"


def test_the_command_that_resumes_hides_secrets() -> None:
    assert mask_assignment("track.api_token=hunter2") == "track.api_token=<masked>"
    assert mask_assignment("export A=1 HF_TOKEN=hunter2") == "export A=1 HF_TOKEN=<masked>"
    assert mask_assignment("client.lr=0.1") == "client.lr=0.1"
