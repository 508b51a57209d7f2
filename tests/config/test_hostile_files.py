"""What stands behind `--config` or `base` and is no config: refused at once, naming it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import yaml
from parsed import read_without_libyaml

from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError, PreflightError
from fedtorch.core.job_environment import check_job_environment


def message(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(Path("x.yaml"), overrides)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_base_that_never_ends_or_never_begins_is_refused() -> None:
    os.mkfifo("pipe.yaml")
    for base in ("/dev/zero", "pipe.yaml", "/dev/stdin"):
        Path("x.yaml").write_text(f"base: {base}\n")
        assert f"base file {base} is no ordinary file" in message()
    with pytest.raises(ConfigError, match="config file pipe.yaml is no ordinary file"):
        load("pipe.yaml")
    with pytest.raises(ConfigError, match="/dev/zero has more than 1048576 bytes; is it a config"):
        load("/dev/zero")


def test_what_another_command_writes_can_be_a_config() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"rounds: 7\n")
    os.close(writing)
    try:
        assert load(f"/dev/fd/{reading}").rounds == 7
    finally:
        os.close(reading)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: " + "[" * 500_000, "nested too deeply"),
        ("{a: " * 100_000, "nested too deeply"),
        ("- " * 300_000, "nested too deeply"),
        ("? " * 300_000, "a key should be a single word"),
    ],
)
@pytest.mark.parametrize("parser", ["libyaml", "python"])
def test_nesting_costs_no_time(text: str, problem: str, parser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if parser == "python":
        read_without_libyaml(monkeypatch)
    Path("x.yaml").write_text(text)
    begun = time.process_time()
    assert problem in message()
    assert time.process_time() - begun < 4


def test_a_large_file_is_refused_before_it_is_parsed() -> None:
    Path("x.yaml").write_bytes(b"a: '" + b"x" * 10_000_000 + b"'\n")
    assert message() == "config file x.yaml has more than 1048576 bytes; is it a config?"


def test_bases_that_double_at_every_step_are_each_read_once_and_a_long_chain_is_refused() -> None:
    for i in range(40):
        Path(f"{i}.yaml").write_text(f"base: [{i + 1}.yaml, {i + 1}.yaml]\n")
    Path("40.yaml").write_text("rounds: 3\n")
    assert load("0.yaml").rounds == 3
    for i in range(60):
        Path(f"{i}.yaml").write_text(f"base: {i + 1}.yaml\n")
    with pytest.raises(ConfigError, match="51.yaml is number 51 in a chain of `base` lines; make it shorter"):
        load("0.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('run: {dir: "a\\0b"}', "run.dir has NUL in it in x.yaml:1; remove that character"),
        ('task: {data: "a\\0b"}', "task.data has NUL in it in x.yaml:1"),
        ('per_client: {"a\\0": {lr: 1}}', "per_client.a\\x00 has NUL in it in x.yaml:1"),
        ('base: "a\\0b.yaml"', "base has NUL in it in x.yaml:1"),
    ],
)
def test_characters_that_no_file_or_log_can_take_are_refused_with_their_key(text: str, problem: str) -> None:
    Path("x.yaml").write_text(text)
    assert problem in message()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('task: {add_tokens: [a, "\\ud800"]}', "task.add_tokens.1"),
        ('"\\udc00": 1', "\\udc00"),
        ('base: "\\ud800.yaml"', "base"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused(text: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By libyaml itself, so without the key; by PyYAML's own parser it is read, and refused with it."""
    Path("x.yaml").write_text(text)
    if yaml.__with_libyaml__:
        assert message() == "x.yaml:1 is not valid YAML: a code such as \\ud800 is half of a surrogate pair"
    read_without_libyaml(monkeypatch)
    assert f"{key} has half of a surrogate pair in it in x.yaml:1" in message()


def test_a_half_of_a_surrogate_pair_on_the_command_line_is_shown_escaped() -> None:
    Path("x.yaml").write_text("")
    said = message("task.data=\ud800")
    assert said == "`--set task.data=\\ud800` is not valid YAML: it has '\\ud800', which is no character"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("system.threads=100000", "should be an integer at least 1 and at most 1024"),
        ("system.timeout=1e300", "should be a number above 0 and at most 1e+07"),
        ("rounds=10000000000", "should be an integer at least 0 and at most 2147483647"),
        (f"rounds={'9' * 400}", "should be an integer at least 0 and at most 2147483647"),
        ("task.model.d_model=3000000000", "should be an integer at least 1 and at most 2147483647"),
        ("task.model.num_layers=100000", "should be an integer at least 1 and at most 1000"),
        ("task.model.num_decoder_layers=100000", "should be an integer at least 1 and at most 1000 or null"),
        ("client.batch_size=1e30", "should be an integer at least 1"),
    ],
)
def test_numbers_beyond_sense_are_refused(override: str, problem: str) -> None:
    Path("x.yaml").write_text("")
    assert problem in message(override)


def test_more_clients_or_parts_than_fit_into_memory_are_refused() -> None:
    Path("x.yaml").write_text("task: {name: wikisql}\nalgorithm: {name: fedparsing}")
    assert "at most 1e+06" in message("task.num_clients=2000000000")
    assert "at most 10000" in message("task.parts=2000000000")


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "x"), ("WORLD_SIZE", ""), ("LOCAL_RANK", "-1"), ("WORLD_SIZE", "²"), ("RANK", "9" * 30)],
)
def test_a_rank_that_is_no_number_is_named(name: str, value: str) -> None:
    with pytest.raises(PreflightError, match=f"environment variable {name} is '.*', expected a number"):
        check_job_environment({"RANK": "0", "WORLD_SIZE": "2", name: value})


def test_a_rank_beyond_the_ranks_is_refused() -> None:
    assert check_job_environment({}) == (0, 1) and check_job_environment({"RANK": "1", "WORLD_SIZE": "2"}) == (1, 2)
    for environ in ({"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "1"}, {"WORLD_SIZE": "0"}):
        with pytest.raises(PreflightError, match="expected a rank below it"):
            check_job_environment(environ)
