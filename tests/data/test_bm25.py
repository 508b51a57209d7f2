from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.data.bm25 import BM25, _bm25s, words


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_words_are_lower_case_letters_and_digits_with_inner_apostrophes_and_stops() -> None:
    assert words("Don't pay 3.5 % at example.com!  (U.S.) naïve_user") == [
        "don't",
        "pay",
        "3.5",
        "at",
        "example.com",
        "u.s",
        "naïve_user",
    ]


TEXTS = st.lists(st.lists(st.sampled_from("abcde"), max_size=6).map(" ".join), min_size=1, max_size=8)


@given(TEXTS, st.lists(st.sampled_from("abcdef"), max_size=4))
def test_scores_follow_lucenes_formula(texts: list[str], query: list[str]) -> None:
    tokens = [text.split() for text in texts]
    average = sum(map(len, tokens)) / len(tokens)
    expected = []
    for document in tokens:
        total = 0.0
        for token in query:
            frequency = sum(token in other for other in tokens)
            count = document.count(token)
            if count:
                idf = math.log(1 + (len(tokens) - frequency + 0.5) / (frequency + 0.5))
                total += idf * count / (count + 1.2 * (0.25 + 0.75 * len(document) / average))
        expected.append(total)
    assert BM25(texts).scores(" ".join(query)).tolist() == pytest.approx(expected, abs=1e-9)


def test_ties_keep_document_order_and_texts_without_a_common_word_are_no_hits() -> None:
    index = BM25(["red fox", "blue", "red cat", "red dog"])
    assert index.top("red", 10) == [0, 2, 3]
    assert index.top("red", 2) == [0, 2]
    assert index.top("green", 3) == index.top("", 3) == index.top("red", 0) == []


def test_negatives_are_the_best_hits_that_are_not_positive() -> None:
    texts = ["a a a", "a a b", "a c c", "a b b d", "e", "a b c d e f g"]
    index = BM25(texts)
    best = index.top("a", 6)
    chosen = index.negatives("a", [texts[best[1]]], count=2, generator=generator())
    assert chosen == [best[0], best[2]]


def test_a_text_equal_to_a_positive_is_no_negative_wherever_it_stands() -> None:
    index = BM25(["x y", "x z", "x y", "x y", "x w"])
    assert sorted(index.negatives("x", ["x y"], count=5, generator=generator())) == [1, 4]


def test_places_without_a_hit_are_filled_with_seeded_random_others() -> None:
    index = BM25(["x y", *(f"other{i}" for i in range(20))])
    first = index.negatives("x", [], count=5, generator=generator(1))
    assert first[0] == 0 and len(set(first)) == 5
    assert first == index.negatives("x", [], count=5, generator=generator(1))
    assert first != index.negatives("x", [], count=5, generator=generator(2))


def test_full_hits_leave_the_generator_alone() -> None:
    untouched = generator(3)
    BM25(["x", "x y", "x z"]).negatives("x", ["x"], count=2, generator=untouched)
    assert torch.equal(untouched.get_state(), generator(3).get_state())


def test_texts_without_any_word_are_never_hits_and_no_texts_are_an_error() -> None:
    assert BM25(["", "!"]).scores("x").tolist() == [0.0, 0.0]
    assert sorted(BM25(["", "!"]).negatives("x", [], count=5, generator=generator())) == [0, 1]
    with pytest.raises(ValueError, match="at least one"):
        BM25([])


def test_indexing_shows_nothing(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        BM25(["a b", "b c"]).top("b", 1)
    assert capfd.readouterr() == ("", "") and not [r for r in caplog.records if r.name.startswith("bm25s")]


def test_jax_is_hidden_while_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bm25s.py").write_text("import sys\nJAX = sys.modules.get('jax', 'can be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("bm25s", "jax"):
        monkeypatch.setitem(sys.modules, name, None)  # whatever is there comes back afterwards, or nothing does
        del sys.modules[name]
    assert _bm25s().JAX is None and "jax" not in sys.modules


@pytest.mark.processes
def test_jax_is_not_imported_with_it_for_it_would_take_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("print('JAX took three quarters of the GPU')")
    (tmp_path / "jax" / "lax.py").write_text("def top_k(*_): pass")
    lines = [
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})",
        "from fedtorch.data.bm25 import BM25",
        "print(BM25(['a b', 'c']).top('c', 1))",
        "import jax.lax",  # whoever wants it still gets it
    ]
    done = subprocess.run([sys.executable, "-c", "; ".join(lines)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[1]", "JAX took three quarters of the GPU"], done.stderr
