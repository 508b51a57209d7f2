"""A script of the user's as a client: it runs alone, in one process and on ranks, and its mistakes are named."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_runner
from own_rows import write_rows
from ranks import run_ranks
from supervisor import as_rank
from trained_otherwise import answers

import fedtorch
import fedtorch.client as fl
from fedtorch.cli.__main__ import main
from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError

SCRIPT = """
import sys

import torch
import fedtorch.client as fl

rows = fl.rows("rows.jsonl", by="home")
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
model = fl.receive(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for row in rows[:4]:
    inputs = torch.tensor([float(len(row["prompt"])), float(len(row["completion"])), 1.0]) / 10
    loss = (model(inputs) - 1).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    fl.step()
    total += loss.item()
{more}
fl.send(model, {{"loss": total / 4, "rows": len(rows)}})
print("sent", len(rows), fl.name())
"""
LOOP = """
import torch
import fedtorch.client as fl

rows, count = fl.rows("rows.jsonl", by="home"), 0
model = torch.nn.Linear(3, 1)
while fl.running():
    fl.receive(model)
    count += 1
    with torch.no_grad():
        model.bias += 1
    fl.step()
    fl.send(model, {"count": count})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_rows(tmp_path / "rows.jsonl", answers())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(folder: Path, more: str = "", name: str = "train.py", text: str = SCRIPT) -> Path:
    path = folder / name
    path.write_text(text.format(more=more) if text is SCRIPT else text)
    return path


def runner_of(*sets: str) -> Any:
    name, *others = sets
    own = ["task.name=script", f"task.script={name}", "client.trainer=script", "run.dir=one", *others]
    return make_runner(load("script/first", own))


def run(name: str = "train.py", *sets: str) -> Any:
    own = ["task.name=script", f"task.script={name}", "client.trainer=script", *sets]
    return fedtorch.run("script/first", own)


def test_alone_it_has_all_rows_and_sends_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script(folder)), run_name="__main__")
    assert capsys.readouterr().out == "sent 30 alone\n"


def test_outside_of_a_run_the_calls_do_nothing(folder: Path) -> None:
    model = torch.nn.Linear(1, 1)
    assert fl.receive(model) is model and (fl.name(), fl.round(), fl.seed()) == ("alone", 0, 0)
    assert [fl.running(), fl.running(), fl.running(), fl.running()] == [True, False, True, False]
    fl.send(model, {"loss": 1.0}), fl.step()
    assert fl.rows("rows.jsonl")[0] == answers()[0]


@pytest.mark.long
def test_the_command_trains_every_client_on_its_own_rows(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script(folder)
    assert main(["run", "--script", "train.py", "--set", "rounds=2"]) == 0
    out = capfd.readouterr().out
    assert {line for line in out.splitlines() if line.startswith("sent")} == {
        "sent 10 north", "sent 10 south", "sent 10 west"
    }  # fmt: skip
    result = json.loads((folder / "runs/train/results.json").read_text())
    assert result["rounds"] == 2 and {entry["examples"] for entry in result["clients"].values()} == {10}


@pytest.mark.processes
def test_one_digest_however_many_ranks(folder: Path) -> None:
    script(folder)
    alone = run("train.py", "run.dir=one")
    own = ["task.name=script", "task.script=train.py", "client.trainer=script", "run.dir=three"]
    run_ranks(as_rank, 3, ["--config", "script/first", "--set", *own])
    found = json.loads((folder / "three/results.json").read_text())
    assert found["digest"] == alone.digest and json.loads((folder / "three/env.json").read_text())["ranks"] == 3


def test_a_round_is_the_scripts_own_step_by_hand(folder: Path) -> None:
    script(folder)
    runner = runner_of("train.py", "rounds=1", "clients.per_round=1")
    runner.run()
    name = runner.trainer.drawn[0][0].name
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    for row in [row for row in answers() if row["home"] == name][:4]:
        inputs = torch.tensor([float(len(row["prompt"])), float(len(row["completion"])), 1.0]) / 10
        gradients = torch.autograd.grad((model(inputs) - 1).square().sum(), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    found = runner.context.components.engine.shared.view(runner.context.server.tensors["weights"])
    assert all(torch.allclose(found[n], p, rtol=0, atol=1e-6) for n, p in model.named_parameters())


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ("1 / 0", "failed:ZeroDivisionError"),
        ("sys.exit(3)", "failed:SystemExit"),
        ("sys.exit(0)", "failed:NothingSent"),
        ("fl.send(model)", "failed:UpdateError"),
        ("model = torch.nn.Linear(4, 1)", "failed:UpdateError"),
        ("model = torch.nn.Sequential(model)", "failed:UpdateError"),
    ],
)
def test_a_client_whose_script_fails_is_named_and_the_others_go_on(folder: Path, more: str, status: str) -> None:
    script(folder, f"if fl.name() == 'north':\n    {more}")
    result = run("train.py", "run.dir=one", "rounds=1")
    statuses = {name: entry["status"] for name, entry in result.results["clients"].items()}
    assert statuses == {"north": status, "south": "ok", "west": "ok"}


def test_numbers_that_are_not_finite_are_refused(folder: Path) -> None:
    script(folder, "if fl.name() == 'north':\n    torch.nn.init.constant_(model.weight, float('nan'))")
    runner = runner_of("train.py", "rounds=1")
    runner.run()
    assert runner.context.server.tensors["weights"].isfinite().all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import fedtorch.client as fl\nfl.rows('rows.jsonl', by='home')\n", r"without fedtorch.client.receive"),
        (
            "import fedtorch.client as fl\nfl.receive(None)\n",
            r"calls fedtorch.client.receive before fedtorch.client.rows",
        ),
        ("import fedtorch.client as fl\nfl.rows()\n", r"where the rows are and whose"),
        ("import fedtorch.client as fl\nfl.rows('rows.jsonl', by='hom')\n", r"no column `hom`; did you mean `home`"),
        ("raise KeyError('x')\n", r"failed before it received a model: KeyError: 'x' at train.py:1"),
        ("import sys\nsys.exit(4)\n", r"ended with exit\(4\)"),
    ],
)
def test_a_script_that_cannot_be_a_client_is_refused_before_anything_is_trained(
    folder: Path, text: str, words: str
) -> None:
    script(folder, text=text)
    with pytest.raises(ConfigError, match=words):
        run("train.py", "run.dir=one")


def test_a_script_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match="task.script is nowhere.py, which is no file"):
        run("nowhere.py")


def test_a_script_that_waits_is_not_the_process_that_others_are_started_from(folder: Path) -> None:
    before = sys.modules["__main__"]
    script(folder, text=LOOP)
    run("train.py", "run.dir=kept", "task.keep=process", "rounds=1")
    assert sys.modules["__main__"] is before


def test_a_kept_process_remembers_and_one_that_is_not_kept_does_not(folder: Path) -> None:
    script(folder, text=LOOP)
    for keep, last in (("process", 9.0), ("nothing", 1.0)):
        run("train.py", f"run.dir={keep}", f"task.keep={keep}", "rounds=3")
        lines = map(json.loads, (folder / keep / "metrics.jsonl").read_text().splitlines())
        counts = [line["trainer_count"] for line in lines if "trainer_count" in line]
        assert max(counts) == last


def test_rows_of_the_config_are_the_scripts(folder: Path) -> None:
    script(folder, text=SCRIPT.format(more="").replace('fl.rows("rows.jsonl", by="home")', "fl.rows()"))
    data = "task.data={source: rows.jsonl, clients: {iid: 5}, splits: {dev: 0, test: 0}}"
    result = run("train.py", "run.dir=one", "rounds=1", data)
    assert [entry["examples"] for entry in result.results["clients"].values()] == [6] * 5


@pytest.mark.parametrize("more", ["sys.exit('a secret')", "fl.send(model, {'a secret': 'x'})"])
def test_no_text_of_a_script_is_in_what_is_said_of_its_failure(folder: Path, more: str) -> None:
    script(folder, f"if fl.name() == 'north':\n    {more}")
    result = run("train.py", "run.dir=one", "rounds=1")
    assert result.results["clients"]["north"]["status"].startswith("failed:")
    said = [line for line in (folder / "one/log.rank0.txt").read_text().splitlines() if "client north failed" in line]
    assert said and not any("secret" in line for line in said)


@pytest.mark.parametrize("clause", ["finally:", "except BaseException:"])
def test_a_script_that_sends_whatever_happens_is_begun_like_any_other(folder: Path, clause: str) -> None:
    text = SCRIPT.format(more="").replace("model = fl.receive(model)", "try:\n    fl.receive(model)\n" + clause)
    text = text.replace(clause, clause + "\n    if fl.name() == 'none':\n        fl.send(model)")
    script(folder, text=text)
    result = run("train.py", "run.dir=one", "rounds=1")
    assert {entry["status"] for entry in result.results["clients"].values()} == {"ok"}


def test_a_module_beside_the_script_is_as_new_for_every_client(folder: Path) -> None:
    (folder / "beside.py").write_text("calls = []\n")
    script(folder, "import beside\nbeside.calls.append(1)\nassert len(beside.calls) == 1")
    result = run("train.py", "run.dir=one")
    assert {entry["status"] for entry in result.results["clients"].values()} == {"ok"}
    assert "beside" not in sys.modules


def test_modules_of_one_name_beside_two_scripts_are_each_scripts_own(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "beside.py").write_text(f"name = '{name}'\n")
        script(folder, f"import beside\nassert beside.name == '{name}'", name=f"{name}/train.py")
        result = run(f"{name}/train.py", f"run.dir=of_{name}", "rounds=1")
        assert {entry["status"] for entry in result.results["clients"].values()} == {"ok"}


@pytest.mark.parametrize("failure", ["1 / 0", "raise SystemExit(2)"])
def test_a_kept_script_that_failed_is_begun_anew_for_the_next_client(folder: Path, failure: str) -> None:
    text = LOOP.replace(
        "    fl.step()", f"    if fl.name() == 'north' and fl.round() == 1:\n        {failure}\n    fl.step()"
    )
    script(folder, text=text)
    result = run("train.py", "run.dir=one", "task.keep=process", "rounds=2")
    statuses = {name: entry["status"] for name, entry in result.results["clients"].items()}
    assert statuses.pop("north").startswith("failed:") and set(statuses.values()) == {"ok"}


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_a_script_may_go_to_its_own_folder(folder: Path, when: str) -> None:
    (folder / "sub").mkdir()
    source = "rows.jsonl" if when == "after" else "../rows.jsonl"
    lines = [
        "import os\nos.chdir(os.path.dirname(os.path.abspath(__file__)))",
        f"rows = fl.rows('{source}', by='home')",
    ]
    text = SCRIPT.format(more="").replace('rows = fl.rows("rows.jsonl", by="home")', "{first}\n{then}")
    first, then = lines if when == "before" else lines[::-1]
    script(folder, name="sub/train.py", text=text.replace("{first}", first).replace("{then}", then))
    script(folder)
    moved, plain = run("sub/train.py", "run.dir=moved"), run("train.py", "run.dir=plain")
    assert moved.digest == plain.digest


def test_a_script_finds_the_rows_of_the_config_wherever_it_goes(folder: Path) -> None:
    text = SCRIPT.format(more="").replace('fl.rows("rows.jsonl", by="home")', "fl.rows()")
    script(folder, text=text.replace("import sys", "import os, sys\nos.chdir('/')"))
    data = "task.data={source: rows.jsonl, clients: {iid: 5}, splits: {dev: 0, test: 0}}"
    result = run("train.py", "run.dir=one", "rounds=1", data)
    assert [entry["status"] for entry in result.results["clients"].values()] == ["ok"] * 5


def test_a_column_with_a_dot_in_its_name_is_the_scripts_too(folder: Path) -> None:
    rows = [{**row, "size.cm": 1, "nested": {"x": None}} for row in answers()]
    write_rows(folder / "rows.jsonl", rows)
    script(folder, "assert rows[0]['size.cm'] == 1 and rows[0]['nested'] == {'x': None}, rows[0]")
    result = run("train.py", "run.dir=one", "rounds=1")
    assert {entry["status"] for entry in result.results["clients"].values()} == {"ok"}


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["client.trainer=null"], "client.trainer is null but task.name is script"),
        (["client.trainer=transformers"], "client.trainer is transformers but task.name is script"),
        (["per_client.north={trainer: transformers}"], "client.trainer is transformers but task.name is script"),
        (
            ["client.trainer={name: script, args: {lr: 1}}"],
            "client.trainer.args is .* command line is task.arguments",
        ),
        (["client.trainer={name: script, rows: raw}"], "client.trainer.rows is raw"),
        (["client.steps=3"], "client.steps is 3 but client.trainer is script"),
        (["client.optimizer_state=keep"], "client.optimizer_state is keep but client.trainer is script"),
    ],
)
def test_keys_that_a_script_does_not_read_are_refused(folder: Path, sets: list[str], words: str) -> None:
    script(folder)
    with pytest.raises(ConfigError, match=words):
        run("train.py", "run.dir=one", *sets)


def test_what_is_received_into_is_a_model(folder: Path) -> None:
    script(folder, text=SCRIPT.format(more="").replace("fl.receive(model)", "fl.receive('model')"))
    with pytest.raises(ConfigError, match="calls fedtorch.client.receive with a str"):
        run("train.py", "run.dir=one")


def test_a_script_also_trains_on_all_rows_at_once(folder: Path) -> None:
    script(folder)
    result = run("train.py", "run.dir=one", "paradigm=centralized", "rounds=1")
    assert result.results["clients"]["all"] == {**result.results["clients"]["all"], "status": "ok", "examples": 30}


def test_an_audit_of_a_script_says_why_there_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script(folder)
    run("train.py", "run.dir=one", "rounds=1")
    assert main(["audit", "one"]) == 2
    assert "whose batches only the script itself makes" in capsys.readouterr().err
