"""Runs that count: exact, on any number of ranks, with masks and noise, through kills; nothing rare in any file."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import yaml
from own_rows import BERT, CLIENTS, GPT2, names, weather, write_rows
from parties import SECRET as SECRET_OF_JOB
from parties import codes, make_places, run, write_config
from ranks import run_ranks
from safetensors.torch import load_file
from transformers import AutoTokenizer

from fedtorch.config import load as yaml_config
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.lifecycle.signals import StopFlag
from fedtorch.main import main
from fedtorch.report.stats_page import page
from fedtorch.setup.counting import units_of
from fedtorch.setup.plan import Plan
from fedtorch.stats.counting import SiloCounts, words_of
from fedtorch.stats.proposals import as_yaml
from fedtorch.stats.settings import PersonUnit, StatsPrivacy, Words
from fedtorch.stats.table import Stats
from fedtorch.tasks.counted import Counted
from fedtorch.text.byte_bpe import train_subwords

pytest.importorskip("cryptography")
CANARY = "xylophonist"
SECRET = {"clip": 1.0, "secure_sum": {"threshold": 1.0}}


def prepare(folder: Path, **changes: Any) -> Path:
    """Rows of three silos, one of them with a word that nobody else has, and a config; the folder."""
    rows = weather(90)
    for number, row in enumerate(rows):
        row |= {"patient": f"{row['home']}{number % 9}", "label": row["label"].upper() if number % 3 else row["label"]}
    rows[4]["text"] += f" {CANARY}"
    write_rows(folder / "rows.jsonl", rows)
    task = {"name": "text_classification", "model": BERT, "max_length": 8}
    data = {"source": str(folder / "rows.jsonl"), "clients": {"by": "home"}, "splits": {"dev": 0.2, "test": 0.2}}
    config: dict[str, Any] = {
        "task": {**task, "data": data},
        "paradigm": "stats",
        "run": {"dir": str(folder / "run"), "name": "count"},
        "stats": {"labels": {"longest": 6, "width": 8}, "words": {"longest": 6, "width": 128}},
        "track": {"progress": "lines", "tensorboard": False},
        "algorithm": {"name": "fedassistant", "topk": {"ratio": 0.1}},
        "client": {"batch_size": 4},
        "async": {"buffer": 2, "concurrent": 3},
    }
    for key, value in changes.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    (folder / "count.yaml").write_text(yaml.safe_dump(config))
    return folder


def counted(folder: Path, *words: str) -> Stats:
    os.chdir(folder)  # where data are prepared
    assert main(["--config", str(folder / "count.yaml"), *words]) == 0
    return Stats.read(folder / "run-stats")


def as_rank(folder: str) -> int:
    os.chdir(folder)
    return main(["--config", str(Path(folder) / "count.yaml")])


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where data are prepared; the working directory is put back."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def exact(here: Path) -> Stats:
    return counted(prepare(here, stats={"min_count": 1}))


@pytest.mark.long
def test_without_noise_every_number_is_that_of_the_pooled_rows(exact: Stats, here: Path) -> None:
    rows = [json.loads(line) for line in (here / "rows.jsonl").read_text().splitlines()]
    labels, words = exact.table("labels"), exact.table("words")
    assert labels is not None and words is not None
    assert dict(zip(labels.cells, labels.pooled, strict=True)) == Counter(row["label"] for row in rows)
    for silo, own in labels.silos.items():
        said = Counter(row["label"] for row in rows if row["home"] == silo)
        assert dict(zip(labels.cells, own, strict=True)) == {**dict.fromkeys(labels.cells, 0), **said}
    every = Counter(word.decode() for row in rows for word in words_of([row["text"]], Words()))
    assert dict(zip(words.cells, words.pooled, strict=True)) == {w: n for w, n in every.items() if len(w) <= 6}
    empty = exact.table("empty")
    assert empty is not None and empty.pooled == (0.0,)
    splits = exact.table("rows")
    assert splits is not None and splits.pooled == (54.0, 18.0, 18.0) and set(splits.silos) == set(CLIENTS)


@pytest.mark.processes
@pytest.mark.parametrize("changes", [{}, {"privacy": SECRET}, {"stats": {"privacy": {"noise_multiplier": 2.0}}}])
def test_the_same_numbers_on_any_ranks_and_under_masks(here: Path, exact: Stats, changes: dict[str, Any]) -> None:
    one = exact
    if "stats" in changes:
        prepare(here, stats={"min_count": 1, **changes["stats"]}, run={"dir": str(here / "noised"), "name": "n"})
        assert main(["--config", str(here / "count.yaml")]) == 0
        one = Stats.read(here / "noised-stats")
    other = {"stats": {"min_count": 1, **changes.get("stats", {})}, "run": {"dir": str(here / "ranks"), "name": "r"}}
    prepare(here, **{**changes, **other})
    size = 4 if "privacy" in changes else 3
    assert run_ranks(as_rank, size, str(here), timeout=120) == [0] * size
    found = Stats.read(here / "ranks-stats")
    assert [table.pooled for table in found.tables] == [table.pooled for table in one.tables]
    assert [table.cells for table in found.tables] == [table.cells for table in one.tables]
    assert not one.masked
    assert found.masked == ("privacy" in changes) and not found.absent
    assert found.table("labels").silos.keys() == (set() if "privacy" in changes else set(CLIENTS))  # type: ignore[union-attr]


def test_a_word_of_one_row_is_in_no_file_of_the_run(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = counted(prepare(here, stats={"min_count": 2, "words": {"longest": 12, "width": 64}}))
    words = found.table("words")
    assert words is not None and "storm" in words.cells and CANARY not in words.cells
    said = capfd.readouterr()
    assert CANARY not in said.out + said.err
    (here / "run-stats" / "stats.html").write_text(page(found, as_yaml(found, here / "run-stats")))
    for path in (here / "run-stats").rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path
    # no round has asked for it: no other word begins with its letter, and one row is too few to go on
    rule = Plan.of(yaml_config.load(here / "count.yaml"), 1).algorithm.rule  # type: ignore[attr-defined]
    state = max((here / "run-stats" / "checkpoints").rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    vector = next(tensor for name, tensor in load_file(state).items() if name.endswith("counts")).numpy()
    asked = [text for round in range(1, rule.plan.rounds) for text in rule.announced(vector, round).get("words", ())]
    assert len(asked) > 20 and not any(CANARY.encode().startswith(text) for text in asked)


def test_small_numbers_and_those_that_would_give_them_away_are_not_shown(here: Path) -> None:
    found = counted(prepare(here, stats={"min_count": 13}))
    for table in found.tables:
        for silo in table.silos.values():
            assert all(number is None or number >= 13 for number in silo)
    rows = found.table("rows")
    assert rows is not None and rows.pooled == (54.0, 18.0, 18.0)
    assert rows.silos["north"] == (None, None, None)  # 6 and 6 of 30: less than 13 together, so 18 is hidden too


@pytest.mark.processes
@pytest.mark.parametrize("when", ["before its line", "after it"])
@pytest.mark.parametrize("round", [0, 1, 4])
def test_a_run_that_is_killed_goes_on_with_the_same_noise_and_no_further_release(
    here: Path, round: int, when: str
) -> None:
    promise = {"stats": {"privacy": {"epsilon": 8.0, "unit": {"column": "patient"}, "ledger": str(here / "ledgers")}}}
    prepare(here, **promise, run={"dir": str(here / "whole"), "name": "w"})
    assert main(["--config", str(here / "count.yaml")]) == 0
    ledger = here / "ledgers" / "north" / "ledger.jsonl"
    ends = {json.loads(line)["end"] for line in ledger.read_text().splitlines()[1:]}
    prepare(here, **promise, run={"dir": str(here / "cut"), "name": "c"})
    pid = os.fork()
    if not pid:
        import fedtorch.privacy.counts as counts

        release, calls = counts.NoisedCounts.release, [0]

        def dies(self: Any, *args: Any) -> None:
            calls[0] += 1
            is_now = calls[0] == 3 * round + 2
            if is_now and when == "before its line":
                os.kill(os.getpid(), signal.SIGKILL)
            release(self, *args)
            if is_now:  # the silo's line is on the disk, and its numbers have not left
                os.kill(os.getpid(), signal.SIGKILL)

        counts.NoisedCounts.release = dies  # type: ignore[method-assign]
        os._exit(main(["--config", str(here / "count.yaml")]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert main(["--config", str(here / "count.yaml")]) == 0
    one, other = (Stats.read(here / name) for name in ("whole-stats", "cut-stats"))
    assert one.tables == other.tables
    assert {json.loads(line)["end"] for line in ledger.read_text().splitlines()[1:]} == ends


def test_units_are_rows_persons_or_clients(here: Path) -> None:
    unit = {"column": "patient"}
    promise = {"noise_multiplier": 2.0, "unit": unit, "ledger": str(here / "ledgers")}
    assert counted(prepare(here, stats={"privacy": promise, "words": None})).unit == "person (column patient)"
    task = Counted(yaml_config.load(here / "count.yaml").task)
    whose = [{row["patient"] for row in map(json.loads, (here / "rows.jsonl").read_text().splitlines())
              if row["home"] == name} for name in CLIENTS]  # fmt: skip
    for name, persons in zip(CLIENTS, whose, strict=True):
        found = units_of(StatsPrivacy(epsilon=1.0, unit=PersonUnit("patient")), task, name, 30)
        assert len(found) == len(persons) and sorted(at for unit in found for at in unit) == list(range(30))
    assert units_of(StatsPrivacy(epsilon=1.0, unit="client"), task, "north", 30) == [range(30)]
    assert units_of(None, task, "north", 2) == [(0,), (1,)]


def test_a_budget_that_is_used_up_ends_with_code_10(here: Path) -> None:
    promise = {"epsilon": 4.0, "max_epsilon": 4.0, "ledger": str(here / "ledgers")}
    counted(prepare(here, stats={"privacy": promise, "labels": {"longest": 2}, "words": None}))
    prepare(here, stats={"privacy": {**promise, "noise": "discrete"}, "labels": {"longest": 2}, "words": None})
    code = main(["--config", str(here / "count.yaml"), "--set", f"run.dir={here / 'again'}"])
    assert code == 10


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stats": {"privacy": {"epsilon": 1.0, "noise_at": "shared"}}}, "privacy.secure_sum is not set"),
        ({"stats": {"privacy": {"epsilon": 1.0}}, "privacy": SECRET}, "set stats.privacy.noise_at to shared"),
        ({"stats": {"privacy": {"delta": 1e-5}}}, "needs one of epsilon and noise_multiplier; give one"),
        ({"stats": {"privacy": {"epsilon": 1.0, "noise_multiplier": 1.0}}}, "remove one"),
        ({"stats": {"privacy": {"noise_multiplier": 0.01}}}, "below 0.1 next to nothing"),
        ({"stats": {"privacy": {"epsilon": 2.0, "max_epsilon": 1.0}}}, "stats.privacy.max_epsilon is 1.0"),
        ({"stats": {"most_cells": {"labels": 2}}}, "stats.most_cells is set but stats.privacy is not"),
        ({"stats": {"most_cells": {"cats": 2}, "privacy": {"epsilon": 1.0}}}, "names 'cats'"),
        ({"stats": {"by_silo": True}, "privacy": SECRET}, "stats.by_silo is true but privacy.secure_sum is set"),
    ],
)
def test_what_cannot_be_counted_is_refused_before_anybody_meets(here: Path, changes: dict[str, Any], said: str) -> None:
    folder = prepare(here, **changes)
    with pytest.raises(ConfigError, match=said):
        yaml_config.load(folder / "count.yaml")


def test_other_tasks_and_columns_that_are_not_there_are_refused(here: Path) -> None:
    with pytest.raises(ConfigError, match="is for tasks with task.data.source"):
        yaml_config.load("smoke/fedavg", ["paradigm=stats"])
    promise = {"epsilon": 1.0, "unit": {"column": "person"}}
    assert main(["--config", str(prepare(here, stats={"privacy": promise}) / "count.yaml")]) == 2
    with pytest.raises(ConfigError, match=r"has no column `person`.*did you mean `patient`|has no column `person`"):
        yaml_config.load(here / "count.yaml").task.folder  # noqa: B018


@pytest.mark.processes
def test_a_config_that_counts_is_the_same_once_more(here: Path) -> None:
    prepare(here, stats={"privacy": {"epsilon": 8.0}})
    once = yaml_config.load(here / "count.yaml")
    assert once.rounds == 8 and once.run.name == "count-stats" and str(once.folder).endswith("run-stats")
    assert once.algorithm_name == "fedavg" and once.tells_times is False
    assert yaml_config.load(yaml_config.to_dict(once)) == once


def test_a_file_of_something_else_is_named(here: Path) -> None:
    (here / "stats.json").write_text('{"form": 1, "tables": 3}')
    with pytest.raises(DataError, match="is no file of `fedtorch stats`"):
        Stats.read(here)
    with pytest.raises(DataError, match="cannot be read"):
        Stats.read(here / "nothing")


def test_rows_of_two_silos_are_counted_and_their_digests_are_nowhere(here: Path) -> None:
    key = here / "recur.key"
    key.write_text("known to silos alone, and to nobody else")
    key.chmod(0o600)
    folder = prepare(here, stats={"recur": {"key": str(key), "rows": 40}, "min_count": 1, "words": None})
    rows = [json.loads(line) for line in (here / "rows.jsonl").read_text().splitlines()]
    same = [{**row, "home": "south", "text": row["text"].upper()} for row in rows if row["home"] == "north"][:7]
    write_rows(here / "rows.jsonl", [*rows, *same, {**rows[2], "home": "north"}])
    recur = counted(folder).table("recur")
    assert recur is not None and dict(zip(recur.cells, recur.pooled, strict=True)) == {
        "north, south": 7.0, "north, west": 1.0, "south, west": 0.0}  # fmt: skip
    state = max((here / "run-stats" / "checkpoints").rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    vector = next(tensor for name, tensor in load_file(state).items() if name.endswith("counts"))
    rule = Plan.of(yaml_config.load(folder / "count.yaml"), 1).algorithm.rule  # type: ignore[attr-defined]
    assert not vector[rule.plan.of("digests").start : rule.plan.of("digests").stop].any()
    assert vector[rule.plan.of("recur").block(0)].tolist() == [7.0, 1.0, 0.0]


def test_rows_cannot_be_compared_without_room_key_or_server(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    key = here / "recur.key"

    def code(**recur: Any) -> int:
        folder = prepare(here, stats={"recur": {"key": str(key), **recur}, "words": None})
        return main(["--config", str(folder / "count.yaml")])

    assert code() == 8 and "cannot be read" in capfd.readouterr().err
    key.write_text("short")
    key.chmod(0o600)
    assert code() == 2 and "has 5 bytes instead of 32" in capfd.readouterr().err
    key.write_text("known to silos alone, and to nobody else")
    assert code(rows=12) == 3 and "has 30 different rows, above stats.recur.rows 12" in capfd.readouterr().err
    with pytest.raises(ConfigError, match="under whose masks nothing can be compared"):
        yaml_config.load(prepare(here, stats={"recur": {"key": str(key)}}, privacy=SECRET) / "count.yaml")
    with pytest.raises(ConfigError, match="with which no exact number of rows may leave"):
        yaml_config.load(prepare(here, stats={"recur": {"key": str(key)}, "privacy": {"epsilon": 1.0}}) / "count.yaml")


def test_every_task_has_tables_of_its_own(here: Path) -> None:
    """Kinds of spans, messages and their roles, two answers; with exact counts."""
    said = [{"role": "user", "content": "rain?"}, {"role": "assistant", "content": "no"}]
    rows: dict[str, list[dict[str, Any]]] = {
        "token_classification": names(30),
        "causal_lm": [{"messages": said * (1 + n % 2), "home": CLIENTS[n % 3]} for n in range(12)],
        "preference": [
            {"prompt": f"q{n}", "chosen": "yes", "rejected": "no, never", "home": "north"} for n in range(9)
        ],
    }
    expected = {
        "token_classification": {"entities": Counter(k for r in rows["token_classification"]
                                                     for k in {t[2:] for t in r["tags"] if t != "O"})},
        "causal_lm": {"roles": Counter({"user": 12, "assistant": 12, "system": 0, "tool": 0}),
                      "turns": Counter({"2": 6, "4–5": 6})},
        "preference": {"chosen": Counter({"3": 9}), "rejected": Counter({"8–11": 9})},
    }  # fmt: skip
    for task, own in rows.items():
        write_rows(here / "rows.jsonl", own)
        more = {"causal_lm": {"rows_are": "messages"}, "preference": {"kind": "dpo"}}.get(task, {})
        data = {"source": str(here / "rows.jsonl"), "clients": {"by": "home"}}
        config = {"task": {"name": task, "model": GPT2 if more else BERT, "data": data, **more}, "paradigm": "stats",
                  "run": {"dir": str(here / task)}, "stats": {"min_count": 1, "labels": {"longest": 4}}}  # fmt: skip
        (here / "task.yaml").write_text(yaml.safe_dump(config))
        assert main(["--config", str(here / "task.yaml")]) == 0
        found = Stats.read(here / f"{task}-stats")
        for name, counts in expected[task].items():
            table = found.table(name)
            assert table is not None, (task, name)
            assert Counter(dict(zip(table.cells, table.pooled, strict=True))) == counts, (task, name)


def test_tokens_are_those_of_the_named_tokenizer_with_the_share_that_would_be_cut(here: Path) -> None:
    prepare(here)
    texts = [json.loads(line)["text"] for line in (here / "rows.jsonl").read_text().splitlines()]
    train_subwords(texts, here / "words", size=270)
    found = counted(prepare(here, stats={"tokenizer": str(here / "words"), "max_lengths": [20], "min_count": 1}))
    tokens = found.table("tokens")
    lengths = [len(ids) for ids in AutoTokenizer.from_pretrained(here / "words")(texts).input_ids]
    assert tokens is not None and found.tokenizer == str(here / "words")
    for most in (8, 20):  # task.max_length, and one that was asked for
        assert most + 1 in tokens.edges
        above = sum(n or 0 for n, low in zip(tokens.pooled, tokens.edges, strict=False) if low > most)
        assert above == sum(length > most for length in lengths)


def test_the_dry_run_says_what_it_costs_and_how_frequent_a_name_must_be(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prepare(here, stats={"privacy": {"noise_multiplier": 2.0}})
    assert main(["--config", str(folder / "count.yaml"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    cells, deviation = 257 * 128, 2.0 * 8**0.5 * 3**0.5
    assert f"{deviation * NormalDist().inv_cdf(1 - 0.1 / cells):.0f} where 128 beginnings are followed" in said
    assert "words: noise of ± 9.8 on each number" in said and "20 tables in 8 rounds" in said


@pytest.mark.processes
@pytest.mark.parametrize("wrong", ["another tokenizer", "no rows"])
def test_a_silo_with_another_tokenizer_or_without_rows_is_named(tmp_path: Path, wrong: str) -> None:
    places = make_places(tmp_path)
    write_config(places, paradigm="stats", stats={"labels": {"longest": 2}}, trust={})
    if wrong == "no rows":
        (places / "south" / "rows.jsonl").write_text("")
    else:
        train_subwords(["another text"], places / "south" / "words", size=265)
    told = run(places, environ=SECRET_OF_JOB)
    expected = {2, 3} if wrong == "no rows" else {4}  # 2 where it is: a file without a line has no column
    assert set(codes(told)) == expected and all("south" in said or "rank 2" in said for _, said in told), told


def test_a_run_does_not_go_on_with_other_rows(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare(here)
    config, stopped, fill = str(folder / "count.yaml"), StopFlag(), SiloCounts.fill

    def filled(self: SiloCounts, out: Any, silo: int, round: int, beginnings: Any) -> None:
        stopped.signal = signal.SIGTERM if round == 2 else None
        fill(self, out, silo, round, beginnings)

    monkeypatch.setattr(SiloCounts, "fill", filled)
    assert main(["--config", config], stopped) == 75
    monkeypatch.undo()
    os.chdir(here)
    rows = [json.loads(line) for line in (here / "rows.jsonl").read_text().splitlines()]
    write_rows(here / "rows.jsonl", rows[:-3])
    assert main(["--config", config]) == 8 and "data" in capfd.readouterr().err
    facts = Counted(yaml_config.load(folder / "count.yaml").task, tells_digest=False).facts()
    assert "data" not in facts  # of rows that noise hides
