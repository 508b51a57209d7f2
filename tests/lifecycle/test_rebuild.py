"""`fedtorch rebuild`: the weights of every round from base and record alone, in another process and without C."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from ranks import run_ranks
from safetensors.torch import load_file
from supervisor import at, supervise

from fedtorch.core import kernels
from fedtorch.lifecycle.rebuild import main, rebuild
from fedtorch.main import main as run_main
from fedtorch.rounds.exchanged_vectors import ExchangedVectors
from fedtorch.rounds.scalar_record import NAME

pytestmark = pytest.mark.long

ROUNDS = 4
CONFIG = """
run: {{name: toy, dir: {folder}/run}}
rounds: 4
task:
  name: "toy:Saved"
  clients: {{a: [1.0, 1.0, 6], b: [2.0, -1.0, 9], c: [0.5, 3.0, 5], d: [1.5, 0.2, 7]}}
  start: [0.3, -0.7, 1.1]
  width: 100
  noise: 0.5
  dropout: 0.2
  double: false
algorithm: {{name: fedkseed, seeds: 16, eps: 0.01}}
clients: {{per_round: 3}}
client: {{optimizer: sgd, lr: 0.0005, batch_size: 4, steps: 5}}
checkpoint: {{every: 1}}
eval: {{every: 0}}
track: {{progress: "off", tensorboard: false}}
"""


def config(folder: Path) -> Path:
    """A config of a run in `folder`/run, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "toy.yaml"
    path.write_text(CONFIG.format(folder=folder))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[list[float]]]]:
    """A finished run and the weights of each of its rounds, the base first."""
    seen: list[list[float]] = []
    with pytest.MonkeyPatch.context() as patch:
        done, opened = ExchangedVectors.round_done, ExchangedVectors.open_record

        def note(self: ExchangedVectors) -> None:
            done(self)
            seen.append(self.weights.tolist())

        def begin(self: ExchangedVectors) -> None:
            opened(self)
            seen.append(self.weights.tolist())

        patch.setattr(ExchangedVectors, "round_done", note)
        patch.setattr(ExchangedVectors, "open_record", begin)
        path = config(tmp_path_factory.mktemp("rebuilt"))
        assert run_main(["--config", str(path)]) == 0
    yield path.parent / "run", seen


@pytest.mark.parametrize("round", range(ROUNDS + 1))
@pytest.mark.parametrize("has_c", [True, False])
def test_every_round_is_rebuilt_to_the_bit(
    round: int, has_c: bool, run: tuple[Path, list[list[float]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = run
    if not has_c:
        monkeypatch.setattr(kernels, "library", lambda: None)
    said = rebuild(folder, tmp_path / "model", round)
    assert f"the model after {round} of {ROUNDS} rounds" in said
    assert load_file(tmp_path / "model" / "w.safetensors")["w"].tolist() == seen[round]
    assert len({tuple(weights) for weights in seen}) == ROUNDS + 1


def rebuilt(folder: str, out: str) -> tuple[int, str]:
    """The exit code of the command in a process without the loops in C, and what it says."""
    kernels.library = lambda: None  # type: ignore[assignment]
    with redirect_stdout(StringIO()) as said:
        code = main([folder, "--out", out])
    return code, said.getvalue()


@pytest.mark.processes
def test_another_process_without_checkpoints_rebuilds_the_last_round(
    run: tuple[Path, list[list[float]]], tmp_path: Path
) -> None:
    folder, seen = run
    copied = tmp_path / "copied"
    copied.mkdir()
    for name in ("config.yaml", NAME):
        (copied / name).write_bytes((folder / name).read_bytes())
    ((code, said),) = run_ranks(rebuilt, 1, str(copied), str(tmp_path / "again"))
    assert code == 0 and said.startswith(f"{tmp_path / 'again'}: the model after 4 of 4 rounds, weights ")
    assert load_file(tmp_path / "again" / "w.safetensors")["w"].tolist() == seen[-1]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--round", "9"], 2, "--round is 9, but"),
        (["--round", "-1"], 2, "--round is -1"),
        (["--set", "task.start=[0.3, -0.7, 1.2]"], 8, "the base is another one"),
        (["--set", "task.width=99"], 8, "the model has another number of trained parameters"),
        (["--set", "algorithm.seeds=17"], 8, "there are other seeds"),
        (["--set", "client.lr=0.1"], 8, "client.lr, algorithm.bits"),
        (["--set", "algorithm={name: fedavg}"], 2, "whose weights travel and are not recorded"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(
    words: list[str], code: int, message: str, run: tuple[Path, list[list[float]]], tmp_path: Path, capsys: object
) -> None:
    assert main([str(run[0]), "--out", str(tmp_path / "model"), *words]) == code
    assert message in capsys.readouterr().err and not (tmp_path / "model").exists()  # type: ignore[attr-defined]


def test_a_changed_or_missing_line_is_refused_and_named(
    run: tuple[Path, list[list[float]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied, lines = tmp_path / "run", (run[0] / NAME).read_text().splitlines(keepends=True)
    copied.mkdir()
    (copied / "config.yaml").write_bytes((run[0] / "config.yaml").read_bytes())
    line = json.loads(lines[2])
    line["sums"][0] += 1
    changed = {
        "line 3 of": [*lines[:2], json.dumps(line) + "\n", *lines[3:]],
        "is of round 3, where 2 belongs": [*lines[:2], *lines[3:]],
        "line 1 of": lines[1:],
        "has no list of gaps": [*lines[:2], '{"round": 2, "gaps": [1], "sums": [0.5], "digest": ""}\n'],
        "has sums at other places": [*lines[:2], '{"round": 2, "gaps": [99], "sums": [1], "digest": ""}\n'],
        "cannot be read": [],
    }
    for message, kept in changed.items():
        (copied / NAME).write_text("".join(kept))
        if message == "cannot be read":
            (copied / NAME).unlink()
        assert main([str(copied), "--out", str(tmp_path / "model")]) == 8
        assert message in capsys.readouterr().err
    (copied / NAME).write_text("".join(lines[:3]) + lines[3][:40])  # torn: the rounds before it are whole
    assert main([str(copied), "--out", str(tmp_path / "model")]) == 0
    assert "after 2 of 2 rounds" in capsys.readouterr().out
    assert main([str(copied), "--out", str(tmp_path / "model")]) == 2
    assert "which is there already" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("phase", ["broadcast", "train", "header", "payload", "aggregate", "evaluate", "checkpoint"])
@pytest.mark.parametrize("victim", [2, 0], ids=["worker", "server"])
def test_a_kill_in_any_phase_leaves_a_record_from_which_the_same_run_goes_on(
    phase: str, victim: int, run: tuple[Path, list[list[float]]], tmp_path: Path
) -> None:
    ended = supervise(config(tmp_path), faults=at(phase, victim))
    expected = json.loads((run[0] / "results.json").read_text())["digest"]
    assert ended.code == 0 and ended.digest == expected
    assert (tmp_path / "run" / NAME).read_text() == (run[0] / NAME).read_text()
