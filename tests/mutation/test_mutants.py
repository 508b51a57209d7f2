"""Small changes of the rules are noticed by their tests: a sample of mutants, and a list of those that are not."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path

import hypothesis
import pytest
import yaml
from mutants import limit_of, mutants, sample, survives

ROOT = Path(__file__).parents[2]
SURVIVORS = Path(__file__).with_name("survivors.yaml")
MOST = 6
"""mutants of a file"""
ROOMS = ("algorithms", "compression", "metrics", "privacy")
"""every file of theirs in which something can be changed is in `TESTS`"""
SUMS_OF_UPDATES = ("comm/accepted", "comm/reproducible", "core/norms", "core/server", "core/weights")
"""of other rooms what makes the weighted sum and steps along it; so are these"""

# the tests that a file's mutants have to get past, small ones that start no process
RULES, MESSAGES = "papers/test_fl_algorithms", "papers/test_fedassistant_rounds"
LIMITS = "invariance/test_limits"
ROBUST, FACTORS = "algorithms/test_robust", "algorithms/test_adapters"
STACKS = "algorithms/test_adapter_stacks"
PROTOCOL = "privacy/secure_sum/test_protocol"
DEFAULTS, FEWFED = "algorithms/test_defaults", "papers/test_fewfedweight"
SUMS = "privacy/secure_sum/test_sums"
AHEAD = "setup/test_sum_scale"
TESTS = {
    "algorithms/adapters/error": [f"tests/{FACTORS}.py", "-k", "by_hand or identity or product_is or one_factor"],
    "algorithms/adapters/factors": [f"tests/{FACTORS}.py", f"tests/{STACKS}.py"],
    "algorithms/adapters/hetlora": [
        f"tests/{FACTORS}.py",
        "tests/algorithms/test_hetlora_ranks.py",
        "-k",
        "hetlora or ranks",
    ],
    "algorithms/adapters/ranks": [f"tests/{FACTORS}.py", f"tests/{STACKS}.py"],
    "algorithms/adapters/rolora": [f"tests/{FACTORS}.py", "-k", "rolora or rests"],
    "algorithms/adapters/stacks": [f"tests/{STACKS}.py"],
    "algorithms/base": [f"tests/{DEFAULTS}.py", f"tests/{AHEAD}.py"],
    "algorithms/ditto": [f"tests/{RULES}.py", f"tests/{FEWFED}.py", "-k", "ditto"],
    "algorithms/fedassistant": [
        f"tests/{MESSAGES}.py",
        "-k",
        "refused or one_step or all_gradients or accumulated or clipping or private_p",
    ],
    "algorithms/fedavg": [f"tests/{DEFAULTS}.py", f"tests/{AHEAD}.py"],
    "algorithms/feddyn": ["tests/papers/test_feddyn.py", f"tests/{AHEAD}.py"],
    "algorithms/fednova": [f"tests/{RULES}.py", "-k", "fednova"],
    "algorithms/fedparsing": ["tests/papers/test_fedparsing.py"],
    "algorithms/fedprox": [f"tests/{RULES}.py", "-k", "fedprox"],
    "algorithms/fewfedweight": [f"tests/{FEWFED}.py", "-k", "weights_ or schedule or evaluated or double or rests"],
    "algorithms/local": [f"tests/{DEFAULTS}.py"],
    "algorithms/loss_reduction": ["tests/papers/test_lorar_rounds.py"],
    "algorithms/mean_teacher": ["tests/papers/test_fedparsing.py"],
    "algorithms/message": [f"tests/{DEFAULTS}.py"],
    "algorithms/metaweighting": [
        f"tests/{FEWFED}.py",
        "tests/papers/test_pseudo_rows.py",
        "-k",
        "meta_weights or printed_alg or pseudo_rows",
    ],
    "algorithms/pfedme": [f"tests/{RULES}.py", "-k", "pfedme"],
    "algorithms/pseudo": ["tests/papers/test_pseudo_rows.py"],
    "algorithms/robust/base": [f"tests/{ROBUST}.py"],
    "algorithms/robust/centred_clipping": [f"tests/{ROBUST}.py", "-k", "centred or open_l or add_up or attackers"],
    "algorithms/robust/clip": [f"tests/{ROBUST}.py", "-k", "clip or open_limits or attackers or left_out"],
    "algorithms/robust/geometric_median": [f"tests/{ROBUST}.py", "-k", "geometric or attackers or left_out"],
    "algorithms/robust/krum": [f"tests/{ROBUST}.py", "-k", "krum or open_limits or attackers or left_out"],
    "algorithms/robust/median": [f"tests/{ROBUST}.py", "-k", "median or attackers or left_out"],
    "algorithms/robust/products": [f"tests/{ROBUST}.py", "-k", "product"],
    "algorithms/robust/trimmed_mean": [f"tests/{ROBUST}.py", "-k", "trimmed or open_limits or attackers or left_out"],
    "algorithms/scaffold": [f"tests/{RULES}.py", f"tests/{LIMITS}.py", f"tests/{AHEAD}.py", "-k", "scaffold"],
    "algorithms/token_weights": [f"tests/{FEWFED}.py", "-k", "token_weights or tau or clamped or loss_of_a"],
    "algorithms/weighting": [f"tests/{RULES}.py", f"tests/{AHEAD}.py", "-k", "weights"],
    "comm/accepted": ["tests/comm/test_accepted.py", "tests/comm/test_local.py", "tests/rounds/test_previous_scale.py"],
    "comm/reproducible": ["tests/comm/test_reproducible.py", "tests/rounds/test_previous_scale.py"],
    "compression/compressors": ["tests/compression/test_topk.py", "tests/compression/test_slices.py"],
    "compression/eight_bits": ["tests/compression/test_eight_bits.py"],
    "compression/payload": ["tests/compression/test_topk.py"],
    "compression/slices": ["tests/compression/test_slices.py"],
    "compression/topk": ["tests/compression/test_topk.py", "-k", "k_is or ties or none_one or sampled or nan or gpt2"],
    "core/norms": ["tests/core/test_norms.py"],
    "core/server": [f"tests/{RULES}.py", f"tests/{MESSAGES}.py", "-k", "server_rule or servers_adamw or spared"],
    "core/weights": ["tests/core/test_core.py"],
    "metrics/apir": ["tests/metrics/test_apir.py"],
    "metrics/chosen": ["tests/metrics/test_pooled.py"],
    "metrics/confusion": ["tests/metrics/test_spans.py", "tests/metrics/test_generation.py"],
    "metrics/correlation": ["tests/metrics/test_pooled.py"],
    "metrics/exact_match": ["tests/metrics/test_exact_match.py"],
    "metrics/generation": ["tests/metrics/test_generation.py"],
    "metrics/perplexity": ["tests/papers/test_fedassistant_task.py", "-k", "perplexities_of or mean_over or no_column"],
    "metrics/ranking": ["tests/metrics/test_ranking.py", "tests/papers/test_fedmatch_data.py", "-k", "rank or precis"],
    "metrics/significance": ["tests/metrics/test_significance.py"],
    "metrics/spans": ["tests/metrics/test_spans.py"],
    "metrics/text": ["tests/metrics/test_pooled.py"],
    "privacy/accounting": ["tests/privacy/test_accounting.py"],
    "privacy/adaptive": ["tests/privacy/test_adaptive.py"],
    "privacy/client_level": [
        "tests/privacy/test_client_level.py",
        "tests/privacy/test_rounds.py",
        "-k",
        "client_level or number or budget or state_of",
    ],
    "privacy/clip": ["tests/privacy/test_clip.py"],
    "privacy/data_ledger": ["tests/privacy/test_data_ledger.py", "-k", "line or disk"],
    "privacy/discrete": ["tests/privacy/test_discrete.py"],
    "privacy/ledger": ["tests/privacy/test_ledger.py"],
    "privacy/noise": ["tests/privacy/test_discrete.py", "-k", "ahead"],
    "privacy/owner_files": ["tests/privacy/test_owner_files.py", "tests/privacy/test_ledger.py"],
    "privacy/public_sum": ["tests/privacy/test_public_sum.py", f"tests/{SUMS}.py", "-k", "not digest and not refused"],
    "privacy/release": ["tests/privacy/test_ledger.py"],
    "privacy/secure_sum/collector": [f"tests/{PROTOCOL}.py"],
    "privacy/secure_sum/keys": [
        f"tests/{PROTOCOL}.py",
        "tests/privacy/secure_sum/test_primitives.py",
        "-k",
        "of_rfc or keys_are or box",
    ],
    "privacy/secure_sum/openings": [f"tests/{SUMS}.py", "-k", "opened or line or threshold"],
    "privacy/secure_sum/party": [f"tests/{PROTOCOL}.py"],
    "privacy/secure_sum/shamir": ["tests/privacy/secure_sum/test_shamir.py"],
    "privacy/secure_sum/terms": [f"tests/{PROTOCOL}.py"],
    "privacy/settings": ["tests/privacy/test_settings.py"],
    "privacy/stream": ["tests/privacy/test_stream.py"],
}


def test_mutants_have_names_of_their_own_and_differ_from_the_source() -> None:
    lines = ["def f(a: int = 1) -> bool:", "    if a < 2 and not a:", "        raise ValueError(f'{a + 1}')"]
    source = "\n".join([*lines, "    return a * 3 > 4"])
    found = {mutant.name: mutant.tree for mutant in mutants(source)}
    assert set(found) == {
        "f: def f(a: int=1) -> bool: -> def f(a: int=2) -> bool:",
        "f: if a < 2 and (not a): -> if a < 2 or not a:",
        "f: if a < 2 and (not a): -> if a <= 2 and (not a):",
        "f: if a < 2 and (not a): -> if a < 3 and (not a):",
        "f: if a < 2 and (not a): -> if a < 2 and (not not a):",
        "f: return a * 3 > 4 -> return a * 3 >= 4",
        "f: return a * 3 > 4 -> return a / 3 > 4",
        "f: return a * 3 > 4 -> return a * 4 > 4",
        "f: return a * 3 > 4 -> return a * 3 > 5",
    }
    assert {mutant.name for mutant in sample(source, 4)} < set(found)


def without_tests(package: Path, rooms: Iterable[str], known: Container[str]) -> list[str]:
    """Files of some rooms that can be changed in a way that counts and are not among those known."""
    files = sorted(path for room in rooms for path in (package / room).rglob("*.py"))
    names = [path.relative_to(package).with_suffix("").as_posix() for path in files]
    return [n for n, path in zip(names, files, strict=True) if n not in known and any(mutants(path.read_text()))]


def test_every_rule_is_changed_and_a_new_one_is_noticed(tmp_path: Path) -> None:
    assert without_tests(ROOT / "fedtorch", ROOMS, TESTS) == []
    assert {*SUMS_OF_UPDATES, *TESTS} == set(TESTS) and all(place(name)[0].exists() for name in TESTS)
    (tmp_path / "metrics" / "new").mkdir(parents=True)
    for name, text in (("__init__", "from x import y"), ("rule", "def f(a): return a + 1"), ("old", "LEAST = 1")):
        (tmp_path / "metrics" / "new" / f"{name}.py").write_text(text)
    assert without_tests(tmp_path, ROOMS, {"metrics/new/old"}) == ["metrics/new/rule"]


def import_once() -> None:
    """What the tests import of others, once for all forks; and as in `conftest.py` a slow machine finds no mutant."""
    for name in ("scipy.stats", "sklearn.metrics", "transformers", "hypothesis", "peft", "dp_accounting.pld"):
        pytest.importorskip(name)
    hypothesis.settings.register_profile("busy", deadline=None)
    hypothesis.settings.load_profile("busy")


def place(name: str) -> tuple[Path, str]:
    """File and module."""
    return ROOT / "fedtorch" / f"{name}.py", "fedtorch." + name.replace("/", ".")


def words(name: str) -> list[str]:
    """Its tests, for pytest."""
    return [str(ROOT / part) if part.startswith("tests/") else part for part in TESTS[name]]


def listed_survivors(name: str) -> dict[str, str]:
    """Mutant -> why nothing can notice it."""
    return (yaml.safe_load(SURVIVORS.read_text()) or {}).get(name) or {}


@pytest.fixture(scope="module")
def imported() -> None:
    """Once for the tests of all files."""
    import_once()


@pytest.mark.slow
@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("name", sorted(TESTS))
def test_what_survives_is_listed_with_its_reason(name: str) -> None:
    path, module = place(name)
    source, tests, listed = path.read_text(), words(name), listed_survivors(name)
    assert all(listed.values()), f"a survivor of {name} has no reason"
    assert not set(listed) - {mutant.name for mutant in mutants(source)}, "listed, but no mutant of the file any more"
    chosen = sample(source, MOST)
    limit = limit_of(module, path, tests)
    assert limit is not None, "the tests fail without any change"
    left = {mutant.name for mutant in chosen if survives(module, path, mutant.tree, tests, limit)}
    assert left == set(listed) & {mutant.name for mutant in chosen}
