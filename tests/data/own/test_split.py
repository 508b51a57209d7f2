"""Splits that have a row of every label, as far as that can be."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from own_rows import BY_HOME, classifier, completer, own, write_rows

from fedtorch.core.errors import ConfigError
from fedtorch.data.own.keys import OwnData, SplitRule
from fedtorch.data.own.prepare import Dealt, deal_rows
from fedtorch.data.own.split import split_names
from fedtorch.tasks.labelled_texts import LabelledTexts

TENTHS = SplitRule(0.1, 0.1, stratify=True)


def split(labels: Sequence[Any], rule: SplitRule = TENTHS, seed: int = 42) -> dict[str, Counter[Any]]:
    """Split -> how often it has each label, of a client with these."""
    ids = [f"r{i}" for i in range(len(labels))]
    names = split_names([""] * len(labels), labels, ids, OwnData("x", splits=rule, seed=seed), ())
    found: dict[str, Counter[Any]] = {name: Counter() for name in ("train", "dev", "test")}
    for name, label in zip(names, labels, strict=True):
        found[name].update(label if isinstance(label, list) else [label])
    return found


def test_a_label_with_three_rows_is_in_all_splits_which_keep_their_sizes() -> None:
    labels = ["often"] * 60 + ["half"] * 37 + ["rare"] * 3
    found = split(labels)
    assert [counts["rare"] for counts in found.values()] == [1, 1, 1]
    assert [counts.total() for counts in found.values()] == [80, 10, 10]
    # 9 places are left beside that of the rare one: 6 : 3.7 becomes 6 : 3
    assert found["test"] == {"often": 6, "half": 3, "rare": 1}
    without = split(labels, SplitRule(0.1, 0.1))
    assert without["dev"]["rare"] == without["test"]["rare"] == 0


@pytest.mark.parametrize(("rows", "splits"), [(1, [1, 0, 0]), (2, [1, 0, 1]), (3, [1, 1, 1]), (10, [8, 1, 1])])
def test_train_keeps_a_row_and_test_has_the_second(rows: int, splits: list[int]) -> None:
    found = split(["often"] * 90 + ["rare"] * rows)
    assert [counts["rare"] for counts in found.values()] == splits


def test_small_clients_do_not_all_choose_the_most_frequent_label() -> None:
    labels = ["a"] * 5 + ["b"] * 3 + ["c"] * 2  # one row of ten is for dev, one for test
    chosen: Counter[Any] = sum((split(labels, seed=seed)["test"] for seed in range(200)), Counter())
    assert chosen.total() == 200 and all(chosen[label] > 20 * size for label, size in (("a", 4), ("b", 2), ("c", 1)))
    assert {label for seed in range(20) for label in split(labels, SplitRule(0.1, 0.1), seed)["test"]} == {"a"}


def test_of_several_labels_the_rarest_counts() -> None:
    labels = [["often", "rare"] if i < 3 else ["often"] for i in range(60)]
    assert [counts["rare"] for counts in split(labels).values()] == [1, 1, 1]
    assert [counts.total() for counts in split([[] for _ in range(20)]).values()] == [0, 0, 0]


def test_labels_of_a_row_each_leave_the_splits_their_shares() -> None:
    assert [counts.total() for counts in split([f"l{i}" for i in range(20)]).values()] == [16, 2, 2]


@pytest.mark.parametrize("labels", [[], ["a"], ["a", "b"], ["a"] * 9])
def test_few_rows_are_split_by_the_same_sizes(labels: list[str]) -> None:
    sizes = [[counts.total() for counts in split(labels, rule).values()] for rule in (TENTHS, SplitRule(0.1, 0.1))]
    assert sizes[0] == sizes[1]


def test_labels_that_are_all_frequent_get_their_shares() -> None:
    found = split(["a"] * 500 + ["b"] * 300 + ["c"] * 200)
    assert found["dev"] == found["test"] == {"a": 50, "b": 30, "c": 20}


def dealt(folder: Path, rows: Sequence[dict[str, Any]]) -> Dealt:
    data = own(write_rows(folder / "rows.jsonl", rows), splits=TENTHS, clients=BY_HOME)
    return deal_rows(data, LabelledTexts("single_label", ()), folder, lambda row: row["label"])


def test_a_client_is_split_by_its_own_rows_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text": f"t{i}", "label": "abbbb"[i % 5], "home": "xy"[i // 50]} for i in range(100)]
    rows.append({"text": "one", "label": "c", "home": "x"})
    with caplog.at_level(logging.INFO):
        both = dealt(tmp_path, rows)
    assert len(re.findall("too few for all splits", caplog.text)) == 1
    alone = dealt(tmp_path, [row for row in rows if row["home"] == "x"])
    reversed_ = dealt(tmp_path, rows[::-1])
    texts = [
        {name: sorted(row["text"] for row in part) for name, part in found.clients["x"].items()}
        for found in (both, alone, reversed_)
    ]
    assert texts[0] == texts[1] == texts[2]
    assert "too few for all splits: c at x; train keeps one" in caplog.text


def test_a_task_without_labels_refuses_it(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [{"text": "t", "label": "1", "home": "x"}])
    classifier(source, data={"splits": TENTHS})
    for make, more in ((classifier, {"problem": "regression"}), (completer, {})):
        with pytest.raises(ConfigError, match=r"task\.data\.splits\.stratify is true, but the rows of this task have"):
            make(source, data={"splits": TENTHS}, **more)


def test_the_key_changes_what_is_prepared_only_where_it_is_set() -> None:
    assert "stratify" not in OwnData("x").options()["splits"]
    assert OwnData("x", splits=TENTHS).options()["splits"]["stratify"] is True


def test_labels_of_one_row_or_two_are_told_of_clients_that_train(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": f"t{i}", "label": label, "home": "x"} for i, label in enumerate("abbccc")]
    rows += [{"text": f"d{i}", "label": "d", "home": home} for home in "yz" for i in range(3)]
    rows.append({"text": "e", "label": "e", "home": "z"})
    source = write_rows(tmp_path / "rows.jsonl", rows)
    data = own(source, clients=BY_HOME, splits=SplitRule(0.2, 0.2, held_out=("z",), stratify=True))
    with caplog.at_level(logging.INFO):
        deal_rows(data, LabelledTexts("single_label", ()), tmp_path, lambda row: row["label"])
    assert "too few for all splits: a at x, b at x; train keeps one, test has the second" in caplog.text
