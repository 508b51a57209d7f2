"""`clients.sampling`: a name, or a mapping of a name and the fields of a sampler of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from differences import difference

from fedtorch.config.load import digest, load, record_difference, to_dict, to_yaml
from fedtorch.config.samplers import make_sampler
from fedtorch.config.schema import ClientsConfig, Config
from fedtorch.core.client import Client
from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import Count
from fedtorch.core.sampling import NumpyRoundSeed, Sampler, SizeProportional, Uniform


@dataclass(frozen=True)
class Some(Sampler):
    period: Count = 2
    awake: tuple[str, ...] = ()

    def draw(self, clients: Sequence[Client], count: int, *, seed: int, round: int) -> Sequence[Client]:
        return clients[:1]


@dataclass(frozen=True)
class Other(Sampler):
    width: int = 1


SOME, OTHER = f"{__name__}:Some", f"{__name__}:Other"


@pytest.fixture(autouse=True)
def _empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(text: str, *overrides: str, name: str = "x.yaml") -> Config:
    Path(name).write_text(text)
    return load(Path(name), overrides)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Uniform()),
        ("clients: {sampling: uniform}", Uniform()),
        ("clients: {sampling: {name: uniform}}", Uniform()),
        ("clients: {sampling: {}}", Uniform()),
        ("clients: {sampling: null}", Uniform()),
        ("clients: {sampling: size_proportional, per_round: 2}", SizeProportional()),
        ("clients: {sampling: numpy_round_seed, per_round: 2}", NumpyRoundSeed()),
        (f"clients: {{sampling: '{SOME}'}}", Some()),
        (f"clients: {{sampling: {{name: '{SOME}', period: 3, awake: [a, b]}}}}", Some(period=3, awake=("a", "b"))),
    ],
)
def test_a_value_stands_for_a_sampler(text: str, expected: Sampler) -> None:
    assert make_sampler(loaded(text).clients.sampling) == expected


def test_a_sampler_without_fields_is_its_name_so_that_digests_are_as_they_were() -> None:
    plain, named = loaded("clients: {sampling: uniform}"), loaded("clients: {sampling: {name: uniform}}")
    assert to_dict(plain)["clients"]["sampling"] == to_dict(named)["clients"]["sampling"] == "uniform"
    assert digest(plain) == digest(named) == digest(loaded(""))


def test_the_resolved_config_has_every_field_of_the_sampler_and_reads_back() -> None:
    config = loaded(f"clients: {{sampling: '{SOME}'}}")
    assert to_dict(config)["clients"]["sampling"] == {"name": SOME, "period": 2, "awake": []}
    assert loaded(to_yaml(config), name="again.yaml").clients == config.clients
    other = loaded(f"clients: {{sampling: '{SOME}'}}", "clients.sampling.period=5")
    assert difference(config, other) == ["clients.sampling.period was 2 and is now 5"]


def test_layers_merge_the_fields_of_one_sampler_and_drop_those_of_another() -> None:
    Path("low.yaml").write_text(f"clients: {{min: 2, sampling: {{name: '{SOME}', period: 7}}}}")

    def over(text: str) -> object:
        clients = loaded(f"base: low.yaml\nclients: {{sampling: {text}}}").clients
        assert clients.min == 2
        return make_sampler(clients.sampling)

    assert over("{awake: [a]}") == over(f"{{name: '{SOME}', awake: [a]}}") == Some(7, ("a",))
    assert over(f"{{name: '{OTHER}'}}") == over(f"'{OTHER}'") == Other()
    assert over("uniform") == Uniform()
    assert over(f"'{SOME}'") == Some()  # a name alone says everything
    Path("low.yaml").write_text(f"clients: {{min: 2, sampling: '{SOME}'}}")
    assert over("{period: 3}") == Some(period=3)
    Path("low.yaml").write_text("clients: {min: 2, sampling: [1]}")
    assert over(f"{{name: '{OTHER}', width: 3}}") == Other(width=3)


BAD = [
    ("unifrom", "clients.sampling is `unifrom` in x.yaml:1 but there is no such sampler; did you mean `uniform`?"),
    ("random", "no such sampler; choose one of uniform, size_proportional, numpy_round_seed, poisson (or write"),
    ("3", "clients.sampling is 3 in x.yaml:1 but should be a string or a mapping"),
    ("{name: 3}", "clients.sampling.name is 3 in x.yaml:1 but should be a string"),
    ("{name: unifrom}", "clients.sampling.name is `unifrom` in x.yaml:1 but there is no such sampler"),
    ("{name: uniform, period: 3}", "unknown key `clients.sampling.period` in x.yaml:1; remove it"),
    (f"{{name: '{SOME}', perod: 3}}", "unknown key `clients.sampling.perod` in x.yaml:1; did you mean `period`?"),
    (f"{{name: '{SOME}', period: 0}}", "clients.sampling.period is 0 in x.yaml:1 but should be an integer at least 1"),
    ("'no_such:A'", "clients.sampling is `no_such:A` in x.yaml:1 but importing `no_such:A` failed: ModuleNotFound"),
    ("'pathlib:Path'", "clients.sampling is `pathlib:Path` in x.yaml:1 but `pathlib:Path` is not a dataclass"),
    (
        "'fedtorch.algorithms.fedavg:FedAvg'",
        "but `fedtorch.algorithms.fedavg:FedAvg` is no Sampler; derive it from `fedtorch.core.sampling.Sampler`",
    ),
]


@pytest.mark.parametrize(("value", "said"), BAD, ids=[value for value, _ in BAD])
def test_what_is_no_sampler_is_named_with_its_place(value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(f"clients: {{sampling: {value}}}")
    assert said in str(caught.value)


def test_a_config_built_in_python_is_checked_when_it_is_used() -> None:
    with pytest.raises(ConfigError, match="no such sampler"):
        make_sampler(ClientsConfig(sampling="random").sampling)
    with pytest.raises(ConfigError, match="unknown key `clients.sampling.x`"):
        make_sampler({"name": "uniform", "x": 1})


def test_a_record_that_lacks_a_key_is_another_runs() -> None:
    now, changed = to_dict(loaded("")), to_dict(loaded("client: {shuffle: false}"))
    assert record_difference(changed, now) == ["client.shuffle was false and is now true"]
    less = {**now, "client": {key: value for key, value in now["client"].items() if key != "shuffle"}}
    assert record_difference(less, now) == ["client.shuffle was not set and is now true"]
    assert digest(loaded("")) != digest(loaded("client: {shuffle: false}"))


def test_a_second_selection_that_is_not_made_is_another_config() -> None:
    topk = "algorithm: {{name: fedassistant, compression: topk{}}}"
    now, changed = (to_dict(loaded(topk.format(more))) for more in ("", ", second_selection: false"))
    assert record_difference(now, changed) == ["algorithm.second_selection was true and is now false"]
