"""Small changes of the rules are noticed by their tests: a sample of mutants, and a list of those that are not."""

from __future__ import annotations
import __future__

import importlib
import sys
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from mutants import Mutated, limit_of, mutants, sample, survives

ROOT = Path(__file__).parents[2]
SURVIVORS = Path(__file__).with_name("survivors.yaml")
MOST = 6
"""mutants of a file"""
ROOMS = (
    "algorithms",
    "compression",
    "metrics",
    "privacy",
    "report",
    "models/adapters",
    "data/own",
    "tasks",
    "setup",
    "planning",
)
"""every file of theirs in which something can be changed is in `TESTS`, or in `NOT_YET`"""
SUMS_OF_UPDATES = ("comm/sums/accepted", "comm/sums/reproducible", "core/norms", "core/server", "core/weights")
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
    "algorithms/feddyn": ["tests/papers/test_feddyn.py", f"tests/{DEFAULTS}.py", f"tests/{AHEAD}.py"],
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
    "algorithms/personal_model": [f"tests/{DEFAULTS}.py"],
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
    "comm/sums/accepted": [
        "tests/comm/test_accepted.py",
        "tests/comm/test_local.py",
        "tests/rounds/test_previous_scale.py",
    ],
    "comm/sums/reproducible": ["tests/comm/test_reproducible.py", "tests/rounds/test_previous_scale.py"],
    "compression/compressors": ["tests/compression/test_topk.py", "tests/compression/test_slices.py"],
    "compression/eight_bits": ["tests/compression/test_eight_bits.py"],
    "compression/payload": ["tests/compression/test_topk.py"],
    "compression/slices": ["tests/compression/test_slices.py"],
    "compression/topk": ["tests/compression/test_topk.py", "-k", "k_is or ties or none_one or sampled or nan or gpt2"],
    "core/norms": ["tests/core/test_norms.py"],
    "core/server": [f"tests/{RULES}.py", f"tests/{MESSAGES}.py", "-k", "server_rule or servers_adamw or spared"],
    "core/weights": ["tests/core/test_core.py"],
    "metrics/about": ["tests/metrics/test_about.py"],
    "metrics/apir": ["tests/metrics/test_apir.py"],
    "metrics/chosen": ["tests/metrics/test_pooled.py"],
    "metrics/confusion": ["tests/metrics/test_spans.py", "tests/metrics/test_generation.py"],
    "metrics/correlation": ["tests/metrics/test_pooled.py", "tests/metrics/test_regression.py"],
    "metrics/exact_match": ["tests/metrics/test_exact_match.py"],
    "metrics/generation": [
        "tests/metrics/test_generation.py",
        "tests/tasks/test_fewshot.py",
        "-k",
        "test_generation or cannot_tell",
    ],
    "metrics/intervals": ["tests/metrics/test_intervals.py"],
    "metrics/perplexity": ["tests/papers/test_fedassistant_task.py", "-k", "perplexities_of or mean_over or no_column"],
    "metrics/ranking": ["tests/metrics/test_ranking.py", "tests/papers/test_fedmatch_data.py", "-k", "rank or precis"],
    "metrics/regression": ["tests/metrics/test_regression.py"],
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
    "data/own/dirichlet": ["tests/data/own/test_dirichlet.py", "tests/data/own/test_partition.py"],
    "data/own/divergence": ["tests/data/own/test_partition_files.py", "tests/data/own/test_partition.py"],
    "data/own/label_skew": ["tests/data/own/test_partition.py"],
    "data/own/partition": [
        "tests/data/own/test_partition.py",
        "tests/data/own/test_dirichlet.py",
        "tests/data/own/test_partition_files.py",
    ],
    "data/own/row_ids": ["tests/data/own/test_row_ids.py"],
    "models/adapters/added": ["tests/models/test_adapters.py", "-k", "added or scales or unlike_rank"],
    "models/adapters/settings": ["tests/models/test_adapters.py", "-k", "refused or scales or kind"],
    "models/adapters/square": [
        "tests/models/test_adapters.py",
        "tests/tasks/test_public_rows.py",
        "-k",
        "fed_sb or squares or orthonormal or gradient",
    ],
    "report/adapters": ["tests/report/test_adapters_report.py"],
    "report/compared": [
        "tests/report/test_adapters_report.py",
        "tests/report/test_sweep_over_a_key.py",
        "tests/report/test_counted_once.py",
    ],
    "report/robust": ["tests/report/test_adapters_report.py"],
    "report/score_table": ["tests/report/test_report.py", "-k", "not plot"],
    "report/wikisql": ["tests/report/test_wikisql_report.py"],
    "tasks/long_texts": ["tests/tasks/test_long_texts.py"],
    "data/own/client_rule": ["tests/data/own/test_columns.py", "-k", "rule or leaves_out"],
    "data/own/columns": ["tests/data/own/test_columns.py", "-k", "kind or sizes or numbers or looked or inside"],
    "data/own/guess": ["tests/data/own/test_init.py", "tests/data/own/test_init_cases.py", "-k", "not trains"],
    "data/own/keys": ["tests/data/own/test_columns.py", "-k", "leaves_out or left_to or elsewhere"],
    "data/own/overview": ["tests/data/own/test_overview.py"],
    "data/own/partition_files": ["tests/data/own/test_partition_files.py"],
    "data/own/prepare": ["tests/data/own/test_prepare_own.py", "tests/data/own/test_split.py"],
    "data/own/prepared_folder": ["tests/setup/test_data_prepare.py"],
    "data/own/row_store": ["tests/data/own/test_columns.py", "-k", "digests"],
    "data/own/rows": [
        "tests/data/own/test_reading_by_hand.py",
        "tests/data/own/test_rows.py",
        "-k",
        "errors or called_by or digest or line or bad_rows or usual_name",
    ],
    "data/own/saved_set": ["tests/data/own/test_saved_set.py", "tests/data/own/test_source.py"],
    "data/own/text_files": ["tests/data/own/test_reading_by_hand.py", "-k", "table or encoding or array"],
    "models/adapters/mapped": ["tests/models/test_adapters_on_disk.py", "-k", "memory"],
    "models/adapters/precision": ["tests/models/test_adapters_on_disk.py", "-k", "wide"],
    "models/adapters/saved": [
        "tests/models/test_adapters_on_disk.py",
        "-k",
        "not_written or random_weights or of_the_hub or places",
    ],
    "report/groups": ["tests/report/test_groups.py"],
    "report/perplexity": ["tests/report/test_perplexity_table.py"],
    "report/published/__init__": ["tests/report/test_groups.py", "-k", "row"],
    "report/published/changed": [
        "tests/report/test_changed.py",
        "tests/report/test_report.py",
        "-k",
        "differs or difference or changed or compared_as",
    ],
    "report/published/fedassistant": ["tests/report/test_groups.py", "-k", "typed"],
    "report/published/fedmatch": ["tests/report/test_groups.py", "-k", "typed"],
    "report/published/fedparsing": ["tests/report/test_groups.py", "-k", "typed"],
    "report/published/fewfedweight": ["tests/report/test_groups.py", "-k", "typed"],
    "report/published/lorar": ["tests/report/test_groups.py", "-k", "typed or averages"],
    "report/published/table": ["tests/report/test_groups.py", "-k", "beside_the_row"],
    "report/significance": [
        "tests/report/test_groups.py",
        "tests/report/test_report.py",
        "-k",
        "compare or comparison or ttest",
    ],
    "report/svg": ["tests/report/test_charts.py"],
    "setup/attacks": [
        "tests/rounds/test_attacks.py",
        "-k",
        "backdoor_needs or what_cannot or pinned_rows or only_rows",
    ],
    "setup/data_ledger": ["tests/setup/test_promises_by_hand.py", "-k", "releases"],
    "setup/engine": ["tests/setup/test_plan.py", "-k", "share_an or gpu or plain_engine or parts_of"],
    "setup/idle_settings": [
        "tests/setup/test_idle_settings.py",
        "tests/setup/test_plan.py",
        "-k",
        "not nothing_spills",
    ],
    "setup/lateness": ["tests/rounds/test_lateness.py", "tests/setup/test_plan.py", "-k", "cannot_be or may_be_late"],
    "setup/model_size": ["tests/setup/test_plan.py", "-k", "twice"],
    "setup/plan": ["tests/setup/test_plan.py", "-k", "paradigm or cohort or settings or example"],
    "setup/privacy_cost": ["tests/setup/test_plan.py", "-k", "cost"],
    "setup/private": ["tests/setup/test_promises_by_hand.py", "-k", "epsilon or patience"],
    "planning/scale": [
        "tests/setup/test_scale.py",
        "tests/setup/test_dry_run_by_hand.py",
        "-k",
        "trains_as_long or cannot_be or says_what_a_round or idle or nodes or first_weights",
    ],
    "setup/secure": ["tests/setup/test_promises_by_hand.py", "-k", "clip or openings"],
    "setup/sum_scale": ["tests/setup/test_plan.py", "tests/setup/test_sum_scale.py", "-k", "is_called or refused"],
    "setup/vector_checks": ["tests/setup/test_plan.py", "-k", "exchanged or sends"],
    "tasks/base": ["tests/tasks/test_task_defaults.py", "-k", "nothing"],
    "tasks/causal_lm": [
        "tests/tasks/test_traps.py",
        "tests/tasks/test_packing.py",
        "tests/tasks/test_choices.py",
        "tests/tasks/test_task_defaults.py",
        "-k",
        "pooled or border or cut_away or packed_texts or leaves_out or CausalLM or no_template",
    ],
    "tasks/chosen_metrics": [
        "tests/tasks/test_figures_by_hand.py",
        "-k",
        "weighed or no_number or all_clients or digest",
    ],
    "tasks/continued": [
        "tests/tasks/test_traps.py",
        "tests/tasks/test_choices.py",
        "-k",
        "border or likeliest or cut_away or one_example or of_a_conversation",
    ],
    "tasks/conversations": ["tests/tasks/test_rows_by_hand.py", "-k", "choice or assistant or text_alone"],
    "tasks/label_figures": ["tests/tasks/test_figures_by_hand.py", "-k", "f1_and or pearson or correlations"],
    "tasks/labelled_texts": ["tests/tasks/test_rows_by_hand.py", "-k", "label or comma"],
    "tasks/messages": [
        "tests/tasks/test_rows_by_hand.py",
        "tests/tasks/test_messages.py",
        "-k",
        "calls or nulls or scripts",
    ],
    "tasks/new_answers": ["tests/tasks/test_figures_by_hand.py", "-k", "new_rows or new_rows"],
    "tasks/new_rows": ["tests/tasks/test_rows_by_hand.py", "-k", "new_rows"],
    "tasks/own_usage": ["tests/tasks/test_rows_by_hand.py", "-k", "card"],
    "tasks/prepared": [
        "tests/tasks/test_fewshot.py",
        "tests/tasks/test_task_defaults.py",
        "tests/tasks/test_prepared.py",
        "-k",
        "sizes or made_up or Prepared or manifest or compare",
    ],
    "tasks/qa": [
        "tests/tasks/test_qa.py",
        "tests/tasks/test_task_defaults.py",
        "-k",
        "says_how_many or QA or share_is or ranks_last or what_chooses",
    ],
    "tasks/qa_examples": ["tests/tasks/test_rows_by_hand.py", "-k", "answers_are"],
    "tasks/scored": ["tests/tasks/test_figures_by_hand.py", "-k", "added or asked_for"],
    "tasks/tagged_words": ["tests/tasks/test_rows_by_hand.py", "-k", "words or spans"],
    "text/templates": ["tests/tasks/test_rows_by_hand.py", "-k", "template"],
    "tasks/text2sql": [
        "tests/tasks/test_prepared.py",
        "tests/tasks/test_text2sql.py",
        "tests/tasks/test_task_defaults.py",
        "-k",
        "questions or beside_the or padding or three_ways or Text2SQL",
    ],
    "tasks/text_classification": ["tests/tasks/test_answers_by_hand.py", "-k", "text_has or classifier or weigh"],
    "tasks/text_generation": [
        "tests/tasks/test_answers_by_hand.py",
        "tests/tasks/test_task_defaults.py",
        "-k",
        "template or new_tokens or Generation or TextTask",
    ],
    "tasks/wikisql_measures": [
        "tests/tasks/test_rows_by_hand.py",
        "tests/data/test_wikisql_tables.py",
        "tests/papers/test_fedparsing.py",
        "-k",
        "measures or query_is_right or two_cond or logical",
    ],
    "tasks/word_tokens": ["tests/tasks/test_rows_by_hand.py", "-k", "pieces"],
    "report/sweep_scores": ["tests/report/test_sweep_over_a_key.py", "-k", "not pictures"],
    "tasks/fewshot": [
        "tests/tasks/test_fewshot.py",
        "tests/tasks/test_task_defaults.py",
        "-k",
        "see or first_elsewhere or no_weights or each_by or crossfits or FewShot or gym_has or single_examples",
    ],
    "tasks/public_rows": ["tests/tasks/test_public_rows.py", "-k", "best_of or of_no_use"],
    "tasks/seq2seq": [
        "tests/tasks/test_answers_by_hand.py",
        "tests/tasks/test_task_defaults.py",
        "-k",
        "also_where or new_tokens or Seq2Seq or chooses",
    ],
    "tasks/token_classification": [
        "tests/tasks/test_answers_by_hand.py",
        "tests/tasks/test_task_defaults.py",
        "tests/tasks/test_token_classification.py",
        "-k",
        "cut_away or labels_are or chooses or first_piece",
    ],
    "data/own/conll": ["tests/data/own/test_text_form.py"],
    "data/own/guess_task": ["tests/data/own/test_init.py", "tests/data/own/test_init_cases.py", "-k", "not trains"],
    "data/own/guessed": ["tests/data/own/test_init.py", "tests/data/own/test_init_cases.py", "-k", "not trains"],
    "data/own/model_kind": ["tests/data/own/test_init.py", "tests/data/own/test_init_cases.py", "-k", "not trains"],
    "data/own/nested": ["tests/data/own/test_text_form.py"],
    "data/own/source": ["tests/data/own/test_source.py", "tests/data/own/test_reading_by_hand.py"],
    "data/own/split": ["tests/data/own/test_split.py", "tests/data/own/test_prepare_own.py"],
    "data/own/split_files": ["tests/data/own/test_init.py", "tests/data/own/test_init_cases.py", "-k", "splits"],
    "data/own/text_form": ["tests/data/own/test_text_form.py", "tests/data/own/test_reading_by_hand.py"],
    "report/html_curves": ["tests/report/test_html_page.py"],
    "report/html_page": ["tests/report/test_html_page.py"],
    "report/html_scores": ["tests/report/test_html_page.py"],
    "report/html_table": ["tests/report/test_html_page.py"],
}
NOT_YET: dict[str, tuple[str, ...]] = {
    "report": (
        "__main__",
        "apir",
        "apir_plots",
        "command_line",
        "figure",
        "find_runs",
        "overlay",
        "plots",
        "privacy",
        "sweep",
    ),
    "models/adapters": ("lora",),
    "data/own": (
        "first_config",
        "init",
        "picture",
    ),
    "tasks": (
        "dialog",
        "own",
        "own_first",
        "own_overview",
        "wikisql",
    ),
    "planning": (
        "bench",
        "cost_model",
        "dry_run",
        "light_rounds",
        "probe",
        "round_work",
        "step_time",
    ),
    "setup": (
        "bare_rounds",
        "build",
        "checks",
        "data_check",
        "data_partition",
        "data_prepare",
        "init",
        "pinned_data",
        "predict",
        "remarks",
        "run_config",
    ),
}
"""Room -> its files whose changes nobody has run yet. A new file belongs into `TESTS` at once."""


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


def test_defaults_and_what_is_rounded_or_last_are_changed_too() -> None:
    lines = [
        "from statistics import stdev",
        "class Key:",
        "    stride: Whole | None = None",
        "    long: Literal['cut', 'windows', 'none'] = 'cut'",
        "    path: str | None = None",
        "def f(xs):",
        "    return int(stdev(xs)), xs[-1]",
    ]
    found = {mutant.name: mutant.tree for mutant in mutants("\n".join(lines))}
    last = "f: return (int(stdev(xs)), xs[-1]) -> return "
    assert set(found) == {
        "Key: stride: Whole | None = None -> stride: Whole | None = 1",
        "Key: long: Literal['cut', 'windows', 'none'] = 'cut' -> long: Literal['cut', 'windows', 'none'] = 'none'",
        f"{last}(round(stdev(xs)), xs[-1])",
        f"{last}(int(pstdev(xs)), xs[-1])",
        f"{last}(int(stdev(xs)), xs[0])",
        f"{last}(int(stdev(xs)), xs[+1])",
        f"{last}(int(stdev(xs)), xs[-2])",
    }
    names: dict[str, Any] = {}
    exec(
        compile(found[f"{last}(int(pstdev(xs)), xs[-1])"], "", "exec", flags=__future__.annotations.compiler_flag),
        names,
    )
    assert names["f"]([0.0, 10.0]) == (5, 10.0)  # a sample's would be 7.07


def test_a_package_may_be_changed_and_has_its_modules_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "changed_package"
    package.mkdir()
    (package / "__init__.py").write_text("LEAST = 1\n")
    (package / "part.py").write_text("from changed_package import LEAST\n")
    (mutant,) = mutants((package / "__init__.py").read_text())
    monkeypatch.setattr(
        sys, "meta_path", [Mutated("changed_package", package / "__init__.py", mutant.tree), *sys.meta_path]
    )
    try:
        assert importlib.import_module("changed_package.part").LEAST == 2
    finally:
        for name in ("changed_package.part", "changed_package"):
            sys.modules.pop(name, None)


def without_tests(package: Path, rooms: Iterable[str], known: Container[str]) -> list[str]:
    """Files of some rooms that can be changed in a way that counts and are not among those known."""
    files = sorted(path for room in rooms for path in (package / room).rglob("*.py"))
    names = [path.relative_to(package).with_suffix("").as_posix() for path in files]
    return [n for n, path in zip(names, files, strict=True) if n not in known and any(mutants(path.read_text()))]


def test_every_rule_is_changed_and_a_new_one_is_noticed(tmp_path: Path) -> None:
    later = {f"{room}/{name}" for room, names in NOT_YET.items() for name in names}
    assert without_tests(ROOT / "fedtorch", ROOMS, {*TESTS, *later}) == []
    assert not later & set(TESTS) and all(place(name)[0].exists() for name in later)
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
    return ROOT / "fedtorch" / f"{name}.py", "fedtorch." + name.removesuffix("/__init__").replace("/", ".")


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
