"""`report adapters` and `report robust`: every column of both tables, by numbers to be redone by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedtorch.core.errors import ConfigError
from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.scores import AGGREGATION_ERROR
from fedtorch.core.update import Report
from fedtorch.report.adapters import adapters_markdown
from fedtorch.report.command_line import main
from fedtorch.report.find_runs import NamedRun
from fedtorch.report.robust import robust_markdown
from fedtorch.tracking.run_folder import read_run
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker

ROWS = {"a": 30, "b": 12}


def make_run(
    folder: Path,
    errors: Sequence[float | None],
    correct: Sequence[tuple[float, int]] = ((3.0, 4), (1.0, 6)),
    *,
    seed: int = 1,
    adapter: Mapping[str, Any] | None = None,
    megabytes: tuple[float, float] = (2.0, 6.0),
    **settings: Any,
) -> NamedRun:
    """A run of as many rounds as there are errors, evaluated once after the last; in round n all bytes are times n."""
    folder.mkdir(parents=True)
    config = {"run": {"name": f"fedit,seed={seed}", "seed": seed}, "eval": {"select_by": "f1"},
              "task": {"model": {"adapter": adapter if adapter is not None else {"r": 8}}},
              "algorithm": {"name": "fedavg"}, **settings}  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    track = Tracker(
        folder, clients=list(ROWS), rounds=len(errors), settings=TrackConfig(tensorboard=False, progress="off")
    )
    for round, error in enumerate(errors):
        reports = [Report(client, examples=rows, loss_mean=1.0) for client, rows in ROWS.items()]
        traffic = {name: (1 + round) * 1e6 * mb for name, mb in zip(("bytes_up", "bytes_down"), megabytes, strict=True)}
        extra = {} if error is None else {AGGREGATION_ERROR: error}
        track.round(round, RoundFacts(reports, dict.fromkeys(ROWS, 0.5), {}, traffic, extra))
    scores = {client: {"accuracy": (0.0, 9), "f1": pair} for client, pair in zip(ROWS, correct, strict=True)}
    track.evaluation(len(errors) - 1, "test", scores, "final")
    track.close()
    run = read_run(folder)
    return run.name, run


def cells(text: str) -> list[dict[str, str]]:
    """Each row of a table by its head."""
    head, line, *rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in text.splitlines()]
    assert len(line[0].split("|")) == len(head)
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_every_column_of_one_run_by_hand(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [0.5, 0.25, 0.3])
    assert cells(adapters_markdown([run])) == [
        {
            "run": "fedit,seed=1",
            "rule": "fedavg",
            "r": "8",
            "rows": "42",  # 30 + 12
            "rounds": "3",
            "MB up a round": "4.000",  # 2, 4 and 6
            "MB down a round": "12.000",  # 6, 12 and 18
            "aggregation error": "0.3500",  # (0.5 + 0.25 + 0.3) / 3
            "last": "0.3000",
            "score": "0.4000 f1",  # 4 of 10
        }
    ]


def test_seeds_share_a_row_and_the_spread_is_that_of_a_sample(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", [0.5, 0.3], [(3.0, 4), (1.0, 6)], seed=1, megabytes=(2.0, 6.0)),
        make_run(tmp_path / "b", [0.1, 0.1], [(4.0, 4), (3.0, 6)], seed=2, megabytes=(4.0, 6.0)),
    ]
    (row,) = cells(adapters_markdown(runs))
    assert row["run"] == "fedit (n=2)"
    assert row["MB up a round"] == "4.500 ± 2.121"  # 3 and 6: 3 / √2
    assert row["MB down a round"] == "9.000 ± 0.000"
    assert row["aggregation error"] == "0.2500 ± 0.2121"  # 0.4 and 0.1: 0.3 / √2
    assert row["last"] == "0.2000 ± 0.1414"  # 0.3 and 0.1
    assert row["score"] == "0.5500 ± 0.2121 f1"  # 0.4 and 0.7


def test_the_order_of_keys_in_a_config_sets_no_runs_apart(tmp_path: Path) -> None:
    one = make_run(tmp_path / "a", [0.5], seed=1, partition={"private": ["x"], "frozen": ["y"]})
    other = make_run(tmp_path / "b", [0.5], seed=2, partition={"frozen": ["y"], "private": ["x"]})
    path = tmp_path / "b" / "config.yaml"
    path.write_text(yaml.safe_dump(dict(reversed(yaml.safe_load(path.read_text()).items())), sort_keys=False))
    text = path.read_text().replace("  frozen:\n  - y\n  private:\n  - x\n", "  private:\n  - x\n  frozen:\n  - y\n")
    assert text != path.read_text()
    path.write_text(text)
    (row,) = cells(adapters_markdown([one, (other[0], read_run(tmp_path / "b"))]))
    assert row["run"] == "fedit (n=2)"


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"partition": {"private": ["*lora_B*", "head.*"]}}, "fedavg; private *lora_B*, head.*"),
        ({"partition": {"frozen": ["*lora_A*"]}}, "fedavg; frozen *lora_A*"),
        ({"adapter": {"r": 4, "kind": "sb"}}, "fedavg; kind sb"),
        ({"adapter": {"r": 4, "kind": "lora"}}, "fedavg"),
        ({"algorithm": {}}, "fedavg"),
        ({"algorithm": {"name": "flora"}, "partition": {"private": [], "frozen": ["a|b"]}}, r"flora; frozen a\|b"),
    ],
)
def test_the_rule_says_what_of_the_factors_stays_or_rests(settings: Any, rule: str, tmp_path: Path) -> None:
    (row,) = cells(adapters_markdown([make_run(tmp_path / "a", [None], **settings)]))
    assert row["rule"] == rule
    assert row["r"] == str(settings.get("adapter", {"r": 8})["r"])


def test_rounds_without_an_error_count_for_nothing_and_a_run_without_any_shows_none(tmp_path: Path) -> None:
    some = make_run(tmp_path / "a", [0.5, None, 0.25, None])
    none = make_run(tmp_path / "b", [None, None], adapter={"r": 2})
    first, second = cells(adapters_markdown([some, none]))
    assert (first["aggregation error"], first["last"]) == ("0.3750", "0.2500")
    assert (second["aggregation error"], second["last"]) == ("-", "-")


def test_the_command_prints_and_keeps_the_table_and_refuses_runs_without_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "a", [0.5])
    for _ in range(2):  # into a folder that is not there yet, and into one that is
        assert main(["adapters", str(tmp_path / "a"), "--out", str(tmp_path / "new" / "out")]) == 0
        assert capsys.readouterr().out == adapters_markdown([run])
        assert (tmp_path / "new" / "out" / "adapters.md").read_text() == adapters_markdown([run])
    plain = make_run(tmp_path / "b", [0.5], adapter={})
    with pytest.raises(ConfigError, match=r"b has no task\.model\.adapter; name runs with adapters"):
        adapters_markdown([run, plain])


def robust_run(
    folder: Path,
    shares: Mapping[str, Sequence[float | None]],
    rule: Any,
    attack: str = "",
    *,
    with_examples: bool = True,
) -> NamedRun:
    """A run in which each client kept such shares of its weight, round after round; None: it was not accepted."""
    folder.mkdir(parents=True)
    config = {"run": {"name": folder.name}, "algorithm": {"name": "fedavg", "robust": rule}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    count = max(map(len, shares.values()))
    lines: list[dict[str, Any]] = [{"kind": "run", "clients": list(shares), "rounds": count}]
    for round in range(count):
        for client, kept in shares.items():
            line: dict[str, Any] = {"kind": "client", "round": round + 1, "client": client, "status": "ok"}
            line |= {"examples": 10 + round} if with_examples else {}
            line |= {} if kept[round] is None else {"kept": kept[round]}
            lines.append(line | ({"attack": {client: attack}} if attack and client == "b" else {}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder.name, read_run(folder)


def test_how_often_a_robust_rule_left_out_and_shrank_whom(tmp_path: Path) -> None:
    shares = {"a|": (1.0, 1.0, 0.5), "b": (0.0, 0.25, 0.0), "c": (1.0, None, 0.2), "d": (1 - 1e-10, 1e-12, 1.0)}
    run = robust_run(tmp_path / "run", shares, {"name": "krum", "attackers": 2}, "sign flip")
    found = [list(row.values())[2:] for row in cells(robust_markdown([run]).replace("a\\|", "a"))]
    assert found == [
        # client, examples, rounds, left out, shrunk, kept, attack
        ["a", "12", "3", "0", "1", "0.833", ""],
        ["b", "12", "3", "2", "1", "0.083", "sign flip"],
        ["c", "12", "2", "0", "1", "0.600", ""],
        ["d", "12", "3", "0", "1", "0.667", ""],  # what is rounded away is whole
    ]
    assert [row["rule"] for row in cells(robust_markdown([run]).replace("a\\|", "a"))] == ["krum, attackers 2"] * 4
    bare = robust_run(tmp_path / "bare", {"a": (1.0,)}, "median", with_examples=False)
    assert [(row["rule"], row["examples"]) for row in cells(robust_markdown([bare]))] == [("median", "0")]


def test_a_run_without_a_robust_rule_is_refused(tmp_path: Path) -> None:
    run = robust_run(tmp_path / "run", {"a": (None,)}, None)
    with pytest.raises(ConfigError, match=r"run has no client's `kept`; name runs with algorithm\.robust"):
        robust_markdown([run])
