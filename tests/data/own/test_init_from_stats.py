"""`fedtorch init --from-stats`: what silos counted together stands in the config, in place of guesses from one file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from counted_tables import exact, labels, lengths, noised

from fedtorch.config import load as yaml_config
from fedtorch.core.errors import ConfigError
from fedtorch.data.own.first_config import RANDOM, Settings, mapped
from fedtorch.data.own.guessed import Counted, Guess
from fedtorch.data.own.model_kind import ModelKind
from fedtorch.data.own.text_form import TextForm
from fedtorch.setup.init import main, write
from fedtorch.stats.proposals import proposals
from fedtorch.stats.table import Stats
from fedtorch.stats.tokenizer import train

WORDS = "scan fever lung mass history report grave mild severe benign".split()


def notes(known: tuple[str, ...] = ("bad", "good"), number: int = 40, **more: Any) -> str:
    rows = [
        {
            "note": " ".join(WORDS[i * k % 10] for k in range(1, 8)),
            "diagnosis": known[i % len(known)],
            "hospital": "ab"[i % 2],
        }
        for i in range(number)
    ]
    Path("notes.jsonl").write_text("".join(json.dumps({**row, **more}) + "\n" for row in rows))
    return "notes.jsonl"


def counts(**changed: Any) -> Stats:
    """Three labels, one of which is rare, and lengths that 64 tokens hold."""
    table = labels({"east": (75, 25, 5), "north": (20, 60, 0)}, ("bad", "good", "rare"))
    return exact(table, **changed)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a run with a tokenizer."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/stats")
    folder.mkdir(parents=True)
    counts().write(folder)
    train({"fever": 9.0, "lung": 5.0}, folder / "tokenizer")
    return folder


def written() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(Path("n.yaml").read_text())["task"]
    return found


def test_the_config_has_what_was_counted_and_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([notes(), "--out", "n.yaml", "--from-stats", str(run)]) == 0
    found = written()
    assert found["data"]["labels"] == ["bad", "good", "rare"] and found["max_length"] == 64
    assert found["class_weights"] == {"bad": 0.6491, "good": 0.7255, "rare": 12.33}  # 185 / (3 · 95) and so on
    assert found["tokenizer"] == "runs/stats/tokenizer"
    assert '    labels: ["bad", "good", "rare"] # of silos\' counts in runs/stats' in Path("n.yaml").read_text()
    told = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "max_length runs/stats: tokens of 'words'; 1.00% of 200 rows are longer" in told
    assert "labels runs/stats: those that silos counted by" in told
    assert "class_weights runs/stats: the most frequent label has 19.0 times the rows of the rarest" in told
    assert "tokenizer runs/stats: made of words that silos counted; it counts as public" in told
    assert any(line.startswith("max_length counted with words; runs/stats/tokenizer may make more or") for line in told)
    task: Any = yaml_config.load(Path("n.yaml")).task
    assert len(task.vocabulary) == json.loads((run / "tokenizer/made_of.json").read_text())["entries"]
    assert task.label_weights.tolist() == pytest.approx([0.6491, 0.7255, 12.33])
    assert task.examples(task.rows("a", "train"), "here")


def test_without_counts_the_config_is_the_one_of_before(run: Path) -> None:
    write(notes(), Path("n.yaml"))
    text = Path("n.yaml").read_text()
    write(notes(), Path("other.yaml"), counted=Counted("", ""))
    assert Path("other.yaml").read_text() == text and "silos" not in text and "tokenizer:" not in text
    assert '# labels: ["bad", "good"] # seen' in text


def test_a_folder_that_is_no_run_of_stats_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place, said in (
        (Path("runs"), "cannot be read"),
        (Path("none"), "name the folder of a run of `fedtorch stats`"),
    ):
        assert main([notes(), "--out", "n.yaml", "--from-stats", str(place)]) == 3
        assert said in capsys.readouterr().err
    (run / "stats.json").write_text("{}")
    assert main([notes(), "--out", "n.yaml", "--from-stats", str(run)]) == 3
    assert "is no file of `fedtorch stats`" in capsys.readouterr().err and not Path("n.yaml").exists()


def test_labels_of_the_file_that_nobody_counted_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([notes(("bad", "Good", "worse")), "--out", "n.yaml", "--from-stats", str(run)]) == 3
    said = capsys.readouterr().err
    assert "notes.jsonl has labels that are not in the counts of runs/stats: 'Good', 'worse'; those have 'bad'" in said
    many = tuple(f"label {i:02}" for i in range(12))
    assert main([notes(many, 60), "--out", "n.yaml", "--from-stats", str(run)]) == 3
    said = capsys.readouterr().err
    assert "'label 09' and 2 more; those" in said and "label 10" not in said and not Path("n.yaml").exists()
    assert main([notes(many[:10], 60), "--out", "n.yaml", "--from-stats", str(run)]) == 3
    assert "'label 09'; those" in capsys.readouterr().err


def test_counts_of_another_task_are_refused_and_their_task_is_the_usual_one(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([notes(), "--out", "n.yaml", "--from-stats", str(run), "--task", "causal_lm"]) == 2
    assert "has counts for the task text_classification, but causal_lm is asked for" in capsys.readouterr().err
    counts(task="causal_lm").write(run)
    assert main([notes(), "--out", "n.yaml", "--from-stats", str(run)]) == 0
    found = written()
    assert found["name"] == "causal_lm" and "labels" not in found["data"] and "class_weights" not in found
    assert found["max_length"] == 64
    counts(task="text2sql").write(run)
    assert main([notes(), "--out", "other.yaml", "--from-stats", str(run)]) == 2
    assert "text2sql" in capsys.readouterr().err


def test_a_model_of_ones_own_has_its_tokenizer_and_bounds_the_length(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("m").mkdir()
    Path("m/config.json").write_text('{"model_type": "bert", "max_position_embeddings": 24}')
    assert main([notes(), "--out", "n.yaml", "--from-stats", str(run), "--model", "./m"]) == 0
    assert written()["max_length"] == 24 and "tokenizer" not in written()
    told = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "tokenizer runs/stats: not used here" in told
    assert "max_length 64 are more than the model has positions for" in told
    assert "max_length counted with words; ./m may make more or fewer tokens of a text" in told


def test_what_noise_forbids_is_told_and_not_written(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "tokenizer/made_of.json").unlink()
    noised(counts()).write(run)
    assert main([notes(), "--out", "n.yaml", "--from-stats", str(run)]) == 0
    assert not {"class_weights", "tokenizer"} & set(written()) and written()["max_length"] == 64
    assert "not proposed, as the rows of 'rare' are within 3 standard deviations" in capsys.readouterr().out


def settings(**changed: Any) -> Settings:
    counted = Counted("run", "text_classification", ("a",), 600, "words", {"a": 2.0}, "run/tokenizer")
    plain = Settings("a.jsonl", None, ModelKind(), {}, Path("a.jinja"), TextForm(), counted=counted)
    return replace(plain, **changed)


def test_a_key_is_used_where_the_task_has_it() -> None:
    one = Guess(task="text_classification")
    assert settings().labels(one) == ("a",) and settings().class_weights(one) == {"a": 2.0}
    assert settings().labels(replace(one, problem="regression")) == ()
    assert settings().class_weights(replace(one, problem="multi_label")) == {}
    assert settings().labels(replace(one, problem="multi_label")) == ("a",)
    assert settings().labels(replace(one, task="token_classification")) == ("a",)
    assert settings().class_weights(replace(one, task="token_classification")) == {}
    assert settings().labels(replace(one, task="seq2seq")) == () and set(RANDOM) > {"seq2seq"}
    assert settings().length(one) == 512 and settings(kind=ModelKind(positions=700)).length(one) == 600
    assert settings().tokenizer == "run/tokenizer" and settings(model="m").tokenizer is None
    assert settings(counted=Counted("", "")).notes(one) == []
    same = Counted("run", "", (), 64, "m")
    assert settings(counted=same, model="m").notes(one) == []
    assert mapped({"a: b": 2.0, "c": 0.125}) == '{"a: b": 2, "c": 0.125}'


def test_proposals_of_counts_without_tokens_leave_the_length_to_the_file(run: Path) -> None:
    found = proposals(counts(tables=()), run)
    assert found.max_length is None and found.labels == ()
    write(notes(), Path("n.yaml"), counted=found)
    assert written()["max_length"] == 32 and "labels" not in written()["data"]
    with pytest.raises(ConfigError, match="n.yaml is there already"):
        write(notes(), Path("n.yaml"), counted=found)
    assert proposals(exact(lengths({"east": (0, 5, 0, 0, 0, 0)})), run).max_length == 16
