"""The benchmark of what privacy of rows costs in score compares like with like, on rows as they are published."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the package

from benchmarks import record_utility
from benchmarks.record_rows import KINDS, with_words, write_rows
from benchmarks.record_utility import Cell, Settings, cells_of, config_of, table_of
from fedtorch.config.load import load


def published(folder: Path) -> Path:
    """Questions over 140 tables and dialogs of two domains, in the layouts of WikiSQL and SGD."""
    (folder / "wikisql").mkdir(parents=True)
    for split, count in (("train", 280), ("test", 5)):
        rows = [{"question": f"how many {n}", "table_id": f"t{n // 2}", "sql": {"agg": n % 6}} for n in range(count)]
        (folder / "wikisql" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, count in (("train", 60), ("dev", 60), ("test", 3)):
        frames = [{"actions": [{"act": "INFORM"}, {"act": "SELECT"}]}]
        turns = [{"speaker": who, "utterance": who, "frames": frames} for who in ("USER", "SYSTEM", "USER", "SYSTEM")]
        dialogs = [
            {"dialogue_id": f"{n}", "services": [("Hotels_2", "Events_1")[n % 3 > 1]], "turns": turns}
            for n in range(count)
        ]
        path = folder / "dialog" / "sgd" / split / "dialogues_001.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(dialogs))
    return folder


def test_rows_are_dealt_by_table_and_by_domain(tmp_path: Path) -> None:
    data = published(tmp_path / "data")
    questions = write_rows(KINDS["questions"], data, tmp_path / "questions")
    assert questions == {name: {"row": 40, "table": 20} for name in ("s0", "s1", "s2", "s3", "s4")} | {
        "public": {"row": 60, "table": 30}
    }
    dialogs = write_rows(KINDS["dialogs"], data, tmp_path / "dialogs")
    assert dialogs == {
        "hotels": {"row": 80, "dialog": 40},
        "events": {"row": 40, "dialog": 20},
        "public": {"row": 90, "dialog": 40},
    }
    rows = [json.loads(line) for line in (tmp_path / "dialogs" / "all.jsonl").read_text().splitlines()]
    assert {row["label"] for row in rows} == {"INFORM"} and {row["text"] for row in rows} == {"USER"}
    assert [row["silo"] for row in rows].count("nobody") == 6
    assert {row["part"] for row in rows if row["silo"] == "nobody"} == {"test"}
    assert with_words([{"text": "a b"}]) == [{"text": "a b", "label": "other"}]


def test_cells_have_the_same_steps_and_noise_of_the_same_epsilon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_utility, "noise", lambda epsilon, rate, steps: 6.0)
    args = record_utility._parser().parse_args([])
    cells = cells_of(args)
    assert len(cells) == len(set(cells)) == 3 * (13 + 13 + 2)
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)  # a whole seed first
    data, out = published(tmp_path / "data"), tmp_path / "out"
    declared = {name: write_rows(kind, data, out / name) for name, kind in KINDS.items()}
    enough = {
        rows: {silo: dict.fromkeys(units, 2000) for silo, units in each.items()} for rows, each in declared.items()
    }
    settings = Settings(out, enough, 4, 0.01, 0.5)
    for cell in [*(one for one in cells if one.seed == 1), Cell("dialogs", "public", "dialog", 3.0, 1)]:
        path = out / "config.yaml"
        path.write_text(config_of(cell, settings))
        config, kind = load(str(path)), KINDS[cell.rows]
        (hp,) = {config.client_for(name) for name in config.privacy.units or ["s0"]}
        assert config.rounds * (hp.steps or 0) == 4 * kind.steps
        silos = [name for name in declared[cell.rows] if name != "public"]
        batch = kind.batch.get(cell.unit, kind.batch["row"])
        assert hp.batch_size == batch * (len(silos) if cell.way == "together" else 1)
        assert (config.privacy.delta or 0.0) * max((config.privacy.units or {"": 0}).values()) < 1  # else it is refused
        if cell.way.startswith("shared"):
            honest = len(silos) - int(cell.way[-1])
            assert config.privacy.noise_multiplier == pytest.approx(6.0 / math.sqrt(honest))
            assert config.privacy.simulate and config.server.optimizer == "adam" and hp.lr == 1.0
        elif cell.way in ("local", "alone", "together", "public"):
            assert config.privacy.epsilon == cell.epsilon and not config.privacy.simulate


def test_a_table_has_the_mean_of_the_seeds_and_their_deviation(tmp_path: Path) -> None:
    silos = {name: {"row": 40, "table": 20} for name in ("s0", "s1", "public")}
    settings = Settings(tmp_path, {"questions": silos}, 4, 0.01, 0.5)
    scored = {
        Cell("questions", "local", "row", 3.0, seed): {"summary": {"clients": {"nobody": {"f1_macro": value}}}}
        for seed, value in ((0, 0.4), (1, 0.6))
    }
    text = table_of(scored, settings)
    assert "| local | row | 0.500 ± 0.141 | 2 |" in text and "declared rows 40 40; tables 20 20; 48 steps" in text
    plain = Cell("questions", "none", "none", None, 0)
    pooled = {plain: {"summary": {"clients": {}, "pooled": {"f1_macro": 0.7}}}}
    assert "| none | none | 0.700 | 1 |" in table_of(pooled, settings)
    record_utility.draw({**scored, **pooled}, tmp_path / "one.svg")
    assert "no privacy" in (tmp_path / "one.svg").read_text() or (tmp_path / "one.svg").stat().st_size > 1000
