"""The gym's files, the join of its seeds, and the clients that are made of its tasks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from prepared_files import seal

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.crossfit import SEEDS, FewShot, find_tasks, known_tasks, read_task, read_tsv
from fedtorch.data.crossfit_tasks import GymTask, paper_tasks
from fedtorch.data.prepare import main
from fedtorch.data.prepare_crossfit import place_tasks, prepare_crossfit
from fedtorch.data.prepared_gym import PreparedGym
from fedtorch.data.synthetic.gym import TASKS, write_gym
from fedtorch.metrics.generation import METRICS


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gym")
    tasks = write_gym(folder / "raw")
    prepare_crossfit(tasks.parent, folder / "out", tasks=tasks, vocab_size=300)
    return folder / "out"


def write_task(gym: Path, name: str, train: str, test: str = "t1\ta\nt2\tb\n", dev: str = "d\ta\n", k: int = 2) -> None:
    (gym / name).mkdir(parents=True)
    for seed in SEEDS:
        for split, text in (("train", train), ("dev", dev), ("test", test)):
            (gym / name / f"{name}_{k}_{seed}_{split}.tsv").write_text(text)


def test_the_papers_tasks_are_118_placements_of_117() -> None:
    tasks = paper_tasks()
    held = Counter(client for task in tasks.values() for client in task.clients)
    assert len(tasks) == 117 and held == {1: 29, 2: 29, 3: 29, 4: 31} and tasks["aeslc"].clients == (1, 4)
    assert Counter(task.metric for task in tasks.values()) == {
        "ACC": 42, "Classification-F1": 35, "EM": 23, "Rouge-L": 7, "QA-F1": 7, "Pearson-Correlation": 3,
    }  # fmt: skip
    assert {task.metric for task in tasks.values()} <= set(METRICS)


def test_rows_have_quotes_markers_and_several_answers(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes('a "quoted [SEP] text\tone\ttwo\t\n\nünï\tx\r\n'.encode())
    rows = read_tsv(path)
    assert [tuple(row) for row in rows] == [('a "quoted [SEP] text', ("one", "two")), ("ünï", ("x",))]


@pytest.mark.parametrize(
    ("content", "one_answer", "message"),
    [
        (b"a\tb\nonly one column secret\n", False, r"x.tsv:2: 1 column\(s\), expected at least 2"),
        (b"a\tb\tsecret\n", True, r"x.tsv:1: 3 column\(s\), expected 2 \(input, label\)"),
        (b"a\tb\n \tsecret\n", False, r"x.tsv:2: the input or the first answer is empty"),
        (b"secret\t\n", False, r"x.tsv:1: the input or the first answer is empty"),
        (b"a\tb\nsecret\t\xff\n", False, r"x.tsv:2: byte 8 is not UTF-8"),
    ],
)
def test_bad_rows_are_named_by_file_and_line_without_their_text(
    content: bytes, one_answer: bool, message: str, tmp_path: Path
) -> None:
    (tmp_path / "x.tsv").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_tsv(tmp_path / "x.tsv", one_answer=one_answer)
    assert "secret" not in str(caught.value)


def test_seeds_are_joined_without_duplicates_and_nothing_is_in_two_sets(tmp_path: Path) -> None:
    write_task(tmp_path, "t", "a\tx\nb\ty\na\tx\n", test="a\tx\nc\tx\nd\ty\nd\ty\n", dev="b\ty\nc\tx\ne\ty\n")
    (tmp_path / "t" / "t_2_13_train.tsv").write_text("b\ty\nf\tz\n")
    splits, left_out = read_task(tmp_path, GymTask("t", "EM"), FewShot(test="whole"))
    assert {split: [row.input for row in rows] for split, rows in splits.items()} == {
        "train": ["a", "b", "f"],
        "test": ["c", "d"],
        "dev": ["e"],
    }
    assert left_out == {"test": 1, "dev": 2, "repeated": 11 + 17 + 12}


def test_few_shot_test_sets_have_k_rows_per_label_and_seed(tmp_path: Path) -> None:
    test = "".join(f"t{i}\t{'ab'[i % 2]}\n" for i in range(200))
    write_task(tmp_path, "t", "a\ta\nb\tb\nc\ta\n", test=test, k=2)
    task = GymTask("t", "ACC", per_label=True)
    labels = Counter(row.outputs[0] for row in read_task(tmp_path, task, FewShot(seeds=(13,)))[0]["test"])
    assert labels == {"a": 2, "b": 2}
    splits, _ = read_task(tmp_path, task, FewShot())
    assert 10 < len(splits["test"]) <= 20  # five seeds, a few rows twice
    assert splits == read_task(tmp_path, task, FewShot())[0]
    whole, _ = read_task(tmp_path, task, FewShot(seeds=(13,), per_task=True))
    assert (len(whole["train"]), len(whole["test"])) == (2, 2)


def test_a_missing_split_or_seed_and_several_k_are_errors(tmp_path: Path) -> None:
    write_task(tmp_path, "t", "a\tx\n")
    (tmp_path / "t" / "t_2_42_dev.tsv").unlink()
    with pytest.raises(DataError, match="t_2_42_dev.tsv is missing; every seed needs train, dev and test"):
        read_task(tmp_path, GymTask("t", "EM"), FewShot())
    read_task(tmp_path, GymTask("t", "EM"), FewShot(seeds=(13, 21)))
    (tmp_path / "t" / "t_4_13_dev.tsv").write_text("a\tb\n")
    with pytest.raises(DataError, match="several k: 2, 4; expected t_<k>_<seed>_<split>.tsv with one k"):
        read_task(tmp_path, GymTask("t", "EM"), FewShot(seeds=(13,)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no file; expected empty_<k>"):
        read_task(tmp_path, GymTask("empty", "EM"), FewShot())


def test_tasks_of_a_users_own_gym_need_a_metric(tmp_path: Path) -> None:
    gym, file = tmp_path / "gym", tmp_path / "mine.json"
    with pytest.raises(DataError, match="gym is not a folder"):
        find_tasks(gym, known_tasks(None))
    gym.mkdir()
    with pytest.raises(DataError, match="gym has no task folders"):
        find_tasks(gym, known_tasks(None))
    write_task(gym, "mine", "a\tx\n")
    with pytest.raises(DataError, match="mine is no task of the paper, so its metric is not known"):
        find_tasks(gym, known_tasks(None))
    file.write_text(json.dumps({"tasks": [{"task": "mine", "metric": "BLEU"}]}))
    with pytest.raises(DataError, match="task mine has the metric 'BLEU'; expected one of ACC"):
        known_tasks(file)
    file.write_text(json.dumps({"tasks": [{"task": "mine", "metric": "ACC", "paper_clients": "1"}]}))
    with pytest.raises(DataError, match="`paper_clients` of task mine is no list"):
        known_tasks(file)
    file.write_text(json.dumps({"tasks": [{"task": "mine", "metric": "ACC", "sampling": "16 per class"}]}))
    assert find_tasks(gym, known_tasks(file)) == {"mine": GymTask("mine", "ACC", True)}
    for content, message in (("[]", "has no list `tasks`"), ("{", "is not JSON"), ('{"tasks": [1]}', "entry 1")):
        file.write_text(content)
        with pytest.raises(DataError, match=message):
            known_tasks(file)


def test_clients_are_drawn_by_seed_and_hold_different_tasks() -> None:
    tasks = paper_tasks()
    for clients, needed in ((2, 10), (4, 20), (8, 40), (12, 60)):
        placed = place_tasks(tasks, str(clients), 5, 0)
        names = [name for held in placed.values() for name in held]
        assert len(placed) == clients and len(names) == len(set(names)) == needed
    assert place_tasks(tasks, "4", 5, 0) == place_tasks(tasks, "4", 5, 0) != place_tasks(tasks, "4", 5, 1)
    assert sum(len(held) for held in place_tasks(tasks, "paper", 5, 0).values()) == 118
    with pytest.raises(DataError, match="needs 500 tasks but there are 117"):
        place_tasks(tasks, "100", 5, 0)
    with pytest.raises(DataError, match="--clients is 'many'; expected `paper` or a number"):
        place_tasks(tasks, "many", 5, 0)
    with pytest.raises(
        DataError,
        match=r"1 of 1 tasks belong to no client of the paper \(mine\); say .* `paper_clients` .*--clients 4",
    ):
        place_tasks({"mine": GymTask("mine", "ACC")}, "paper", 5, 0)


def test_a_task_of_ones_own_that_no_client_of_the_paper_holds_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    tasks = write_gym(tmp_path / "raw")
    entries = json.loads(tasks.read_text())
    del entries["tasks"][0]["paper_clients"]
    tasks.write_text(json.dumps(entries))
    command = ["prepare", "crossfit", "--raw", str(tasks.parent), "--out", str(tmp_path / "out"), "--tasks", str(tasks)]
    command += ["--vocab-size", "300"]
    assert main(command) == DataError.exit_code
    error = capsys.readouterr().err
    assert "1 of 8 tasks belong to no client of the paper (made-colour)" in error
    assert "`paper_clients` in the file of --tasks" in error and "--clients 4" in error
    assert main([*command, "--clients", "2", "--tasks-per-client", "3"]) == 0
    shown = capsys.readouterr().out
    assert "left out of the clients: 2 of 8 tasks (nobody holds them)" in shown
    assert "rows (their input is in their task's train or test too)" in shown


def test_the_made_gym_is_prepared_and_read_back(prepared: Path) -> None:
    gym = PreparedGym(prepared)
    assert list(gym.sizes) == ["client1", "client2", "client3", "client4"]
    assert gym.metric_of == {name: made.metric for name, made in TASKS.items()}
    assert {row["task"] for row in gym.rows("client2", "test", None)} == {"made-kind", "made-where"}
    assert any(len(row["outputs"]) == 2 for row in gym.rows("client2", "train", None))
    few = gym.rows("client2", "train", 3)
    assert Counter(row["task"] for row in few) == {"made-kind": 3, "made-where": 3} and len(few) == 6
    assert gym.size("client2", "train", 3) == 6 and few == gym.rows("client2", "train", 3)
    inputs = {split: {row["input"] for row in gym.rows("client1", split, None)} for split in ("train", "dev", "test")}
    assert not inputs["train"] & inputs["test"] and not inputs["dev"] & (inputs["train"] | inputs["test"])


def broken(prepared: Path, tmp_path: Path, old: str, new: str, file: str = "manifest.json") -> PreparedGym:
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(prepared, folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    return PreparedGym(seal(folder))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"metric": "QA-F1"', '"metric": "BLEU"', "task made-where has the metric 'BLEU'"),
        ('"made-where"', f'"{"x" * 60}"', "cannot be used: with its metric it has 66 characters"),
        ('"made-where"', '"made where"', "cannot be used"),
        ('"made-where"', '"Made-Kind"', "another one in lower case|cannot be used"),
    ],
)
def test_metrics_and_names_that_cannot_be_used(
    old: str, new: str, message: str, prepared: Path, tmp_path: Path
) -> None:
    gym = broken(prepared, tmp_path, old, new)
    if "Kind" in new:
        gym.manifest["record"]["tasks"]["Made-Kind"]["metric"] = "Classification-F1"
    with pytest.raises(DataError, match=message):
        _ = gym.metric_of


@pytest.mark.parametrize(("old", "new"), [('"made-where"', '"elsewhere"'), ('["the ', '[1, "the ')])
def test_rows_that_do_not_fit_the_manifest(old: str, new: str, prepared: Path, tmp_path: Path) -> None:
    gym = broken(prepared, tmp_path, old, new, "client2/train.jsonl")
    with pytest.raises(DataError, match="client client2, split train, row [0-9]+: no answer, or a task that"):
        gym.rows("client2", "train", None)


def test_another_data_set_is_no_gym(tiny_data: Path) -> None:
    with pytest.raises(DataError, match="holds no few-shot tasks; prepare it with `prepare crossfit`"):
        _ = PreparedGym(tiny_data).sizes


def test_the_command_line_prepares_once_and_refuses_other_options(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    tasks = write_gym(tmp_path / "raw")
    command = ["prepare", "crossfit", "--raw", str(tasks.parent), "--out", str(tmp_path / "out"), "--tasks", str(tasks)]
    command += ["--vocab-size", "300", "--clients", "2", "--tasks-per-client", "3", "--seeds", "13", "21"]
    assert main(command) == 0 and main(command) == 0
    record = json.loads((tmp_path / "out" / "manifest.json").read_text())["record"]
    assert [len(names) for names in record["options"]["placement"].values()] == [3, 3] and record["missing"] == []
    assert main([*command, "--partition-seed", "5"]) == DataError.exit_code
    assert "was prepared before with other" in capsys.readouterr().err
    changed = ["5" if word == "300" else word.replace("/out", "/new") for word in command]
    assert main(changed) == ConfigError.exit_code


@pytest.mark.long
@pytest.mark.data
def test_the_46_real_tasks(shared_data: Path, tmp_path: Path) -> None:
    manifest = prepare_crossfit(shared_data / "crossfit", tmp_path / "out")
    record = manifest["record"]
    held = {client: len(names) for client, names in record["options"]["placement"].items()}
    assert len(record["tasks"]) == 46 and len(record["missing"]) == 71 and sum(held.values()) == 47
    listed = json.loads((shared_data / "crossfit" / "paper_tasks.json").read_text())["tasks"]
    ours = paper_tasks()
    for entry in listed:
        task = ours[entry["task"]]
        assert (task.metric, list(task.clients)) == (entry["metric"], entry["paper_clients"])
        assert task.per_label == (entry["sampling"] == "16 per class")
    for client in held:
        for task, size in record["sizes"][client]["test"].items():
            assert 30 <= size <= 160, task
