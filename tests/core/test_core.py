"""The small pieces below the round loop: layouts, partitions, updates, client states, seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedtorch
from fedtorch.core.client import ClientState, ClientStore, file_stem
from fedtorch.core.seeds import generator_for, seed_for, seed_torch
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.core.weights import LINE, Layout, Partition, digest_of, digest_of_entries, unshared, xor


def test_a_layout_lays_tensors_end_to_end_and_views_write_through() -> None:
    weights = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor(7.0), "none": torch.zeros(0, 4)}
    layout = Layout.of(weights)
    flat = layout.flatten(weights)
    assert flat.tolist() == [0, 1, 2, 3, 4, 5, 7]
    views = layout.view(flat)
    views["a"].fill_(9.0)
    assert flat[-1] == 9.0 and list(views) == ["b", "a", "none"] and views["none"].shape == (0, 4)


def test_some_tensors_of_a_vector_are_copied_in_their_lines_of_memory() -> None:
    """Those before them are left out, to the beginning of a line; the vector may change afterwards."""
    layout = Layout.of({"a": torch.zeros(100), "b": torch.zeros(2, 5), "c": torch.zeros(7)})
    flat = torch.arange(117.0)
    found = layout.copied(flat, ["c", "b"], torch.device("cpu"))
    flat.zero_()
    assert list(found) == ["b", "c"] and found["c"].tolist() == [*range(110, 117)]
    assert found["b"].tolist() == [[*range(100, 105)], [*range(105, 110)]]
    assert found["b"].untyped_storage().data_ptr() == found["c"].untyped_storage().data_ptr()
    assert found["b"].storage_offset() == 100 % LINE and layout.copied(flat, [], torch.device("cpu")) == {}


def test_stretches_of_a_layout_have_what_lies_in_them_of_each_name() -> None:
    whole = Layout(("a", "b", "c", "d"), ((2, 3), (1,), (4, 5), (2,)), torch.float64)  # from 0, 6, 7 and 27
    assert whole.within([(0, 8), (20, 40)]) == Layout(("a", "b", "c", "d"), ((6,), (1,), (8,), (2,)), torch.float64)
    assert whole.within([(2, 4), (5, 6), (26, 28)]) == Layout(("a", "c", "d"), ((3,), (1,), (1,)), torch.float64)
    assert whole.within([]).size == 0


def test_a_layout_is_fp64_only_if_everything_is() -> None:
    assert Layout.of({"a": torch.zeros(1, dtype=torch.float64)}).dtype == torch.float64
    assert Layout.of({"a": torch.zeros(1, dtype=torch.float64), "b": torch.zeros(1)}).dtype == torch.float32
    assert Layout.of({"a": torch.zeros(1, dtype=torch.bfloat16)}).dtype == torch.float32


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.zeros(2), "b": torch.zeros(3)},
        {"b": torch.zeros(3), "a": torch.zeros(3)},
        {"a": torch.zeros(3), "c": torch.zeros(3)},
        {"a": torch.zeros(3, dtype=torch.float64), "b": torch.zeros(3, dtype=torch.float64)},
    ],
)
def test_layouts_that_do_not_fit_have_other_digests(other: dict[str, torch.Tensor]) -> None:
    assert Layout.of({"a": torch.zeros(3), "b": torch.zeros(3)}).digest() != Layout.of(other).digest()


def test_flatten_names_the_tensor_that_does_not_fit() -> None:
    layout = Layout.of({"a": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"`a` should have shape \(3,\), found \(2,\)"):
        layout.flatten({"a": torch.zeros(2)})
    with pytest.raises(ValueError, match="found nothing"):
        layout.flatten({})


def test_a_partition_keeps_order_and_frozen_wins_over_private() -> None:
    names = ["enc.0.w", "enc.1.w", "head.w", "head.b"]
    shared, private, frozen = Partition(private=("head.*", "enc.0.*"), frozen=("enc.*",)).split(names)
    assert (shared, private, frozen) == ([], ["head.w", "head.b"], ["enc.0.w", "enc.1.w"])


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"`partition.private` pattern 'haed\.\*' matches none of the 1 parameters"):
        Partition(private=("haed.*",)).split(["head.w"])


def test_an_exclusion_takes_names_out_of_a_partition_and_begins_with_all_names_where_it_comes_first() -> None:
    names = ["emb", "a.lora_A", "a.lora_B", "head.w"]
    only = Partition(frozen=("!*lora_*", "!head.*"))
    assert only.split(names) == (["a.lora_A", "a.lora_B", "head.w"], [], ["emb"])
    assert Partition(private=("a.*", "!*lora_A")).split(names) == (["emb", "a.lora_A", "head.w"], ["a.lora_B"], [])
    assert Partition(private=("a.*", "!a.*", "*lora_A")).split(names)[1] == ["a.lora_A"]  # the last that matches
    with pytest.raises(ValueError, match=r"`partition.frozen` pattern '!\*lora_C' matches none of the 4 parameters"):
        Partition(frozen=("!*lora_C",)).split(names)


def test_what_is_not_trained_is_in_no_part() -> None:
    names = ["base.w", "base.head", "head"]
    assert Partition(private=("*head",), frozen=("base.w",)).split(names, ["base.w", "base.head"]) == ([], ["head"], [])
    with pytest.raises(ValueError, match=r"`partition.private` pattern 'base.\*' matches 2 parameters, none of which"):
        Partition(private=("base.*",)).split(names, ["base.w", "base.head"])


def test_the_digest_changes_with_one_bit_a_name_or_a_shape() -> None:
    base = {"a": torch.tensor([1.0, 2.0])}
    flipped = {"a": (base["a"].view(torch.int32) ^ torch.tensor([1, 0], dtype=torch.int32)).view(torch.float32)}
    others = [flipped, {"b": base["a"]}, {"a": base["a"].view(1, 2)}, {"a": base["a"].double()}]
    assert len({digest_of(x) for x in [base, *others]}) == 5
    assert digest_of(base) == digest_of({"a": base["a"].clone()})


def test_digests_of_entries_combine_bit_by_bit_and_in_any_order() -> None:
    one, other = {"a": torch.ones(2)}, {"b": torch.zeros(3)}
    alone = digest_of_entries(one)
    assert alone == bytes.fromhex(digest_of(one)) == xor(alone) and xor() == bytes(32)
    assert xor(alone, digest_of_entries(other)) == digest_of_entries(other | one) and xor(alone, alone) == bytes(32)


def test_updates_beyond_the_memory_go_through_files_and_come_back_to_the_bit(tmp_path: Path) -> None:
    buffer = UpdateBuffer(5, torch.float32, tmp_path / "u", memory_bytes=40)  # room for two
    grads = {name: torch.randn(5, generator=generator_for(0, name)) for name in "abcd"}
    for _ in range(2):
        for name, grad in grads.items():
            buffer.put(name, grad)
        assert len(list((tmp_path / "u").iterdir())) == 2
        assert all(torch.equal(buffer.get(name), grad) for name, grad in grads.items())
        buffer.clear()
        assert "a" not in buffer and not list((tmp_path / "u").iterdir())


def test_an_update_that_was_put_does_not_change_with_its_source(tmp_path: Path) -> None:
    buffer = UpdateBuffer(2, torch.float32, tmp_path, memory_bytes=1 << 20)
    grad = torch.ones(2)
    buffer.put("a", grad)
    grad.zero_()
    assert buffer.get("a").tolist() == [1.0, 1.0]


def test_the_blank_vector_is_kept_without_a_copy_and_is_the_same_until_then(tmp_path: Path) -> None:
    buffer = UpdateBuffer(2, torch.float32, tmp_path, memory_bytes=1 << 20)
    blank = buffer.blank()
    blank.fill_(7.0)  # a client that fails here leaves it to the next one
    assert buffer.blank() is blank
    blank.fill_(1.0)
    buffer.put("a", blank)
    assert buffer.get("a") is blank
    other = buffer.blank()
    other.fill_(2.0)
    buffer.put("b", other)
    assert buffer.get("a").tolist() == [1.0, 1.0] and buffer.get("b").tolist() == [2.0, 2.0]


def test_some_updates_are_forgotten_and_the_others_stay(tmp_path: Path) -> None:
    buffer = UpdateBuffer(2, torch.float32, tmp_path, memory_bytes=16)  # room for two
    for number, name in enumerate("abcd"):
        buffer.put(name, torch.full((2,), float(number)))
    buffer.clear(["a", "c", "z"])
    assert [name in buffer for name in "abcd"] == [False, True, False, True] and len(list(tmp_path.iterdir())) == 1
    buffer.put("a", torch.full((2,), 7.0))
    buffer.put("c", torch.full((2,), 8.0))  # a file, beside that of `d`
    assert [buffer.get(name)[0].item() for name in "abcd"] == [7, 1, 8, 3]
    buffer.clear()
    assert not any(name in buffer for name in "abcd") and not list(tmp_path.iterdir())


def test_a_buffer_never_has_more_vectors_than_fit_and_the_blank_one(tmp_path: Path) -> None:
    buffer = UpdateBuffer(5, torch.float32, tmp_path, memory_bytes=40)  # room for two
    vectors = set()
    for round in range(3):
        for place, name in enumerate("abcd"):
            blank = buffer.blank()
            vectors.add(blank.data_ptr())
            buffer.put(name, blank.fill_(10.0 * round + place))
        assert [buffer.get(name)[0].item() for name in "abcd"] == [10.0 * round + place for place in range(4)]
        buffer.clear()
    assert len(vectors) == 3


def test_two_updates_of_one_client_are_refused(tmp_path: Path) -> None:
    buffer = UpdateBuffer(2, torch.float32, tmp_path, memory_bytes=1 << 20)
    buffer.put("a", torch.ones(2))
    with pytest.raises(ValueError, match="an update of client `a` is held already"):
        buffer.put("a", torch.zeros(2))
    assert buffer.get("a").tolist() == [1.0, 1.0]


@pytest.mark.parametrize("size", [10, 1 << 20])  # within and beyond what is buffered before it is written
def test_an_update_that_the_disk_refuses_is_not_held(tmp_path: Path, size: int) -> None:
    buffer = UpdateBuffer(size, torch.float32, tmp_path, memory_bytes=0)
    buffer.put("a", torch.ones(size))
    (tmp_path / "update_1.bin").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        buffer.put("b", torch.ones(size))
    assert "b" not in buffer and not list(tmp_path.iterdir())
    buffer.put("c", torch.full((size,), 3.0))
    assert torch.equal(buffer.get("c"), torch.full((size,), 3.0))


@pytest.mark.parametrize("memory_bytes", [0, 30, 1 << 20])
def test_staged_states_count_only_when_committed(tmp_path: Path, memory_bytes: int) -> None:
    store = ClientStore(tmp_path / "s", memory_bytes)
    for name in "abc":
        store.put(name, ClientState({"v": torch.full((5,), 1.0)}, {"n": 1}))
    for name in "abc":
        store.stage(name, ClientState({"v": torch.full((5,), 2.0)}, {"n": 2}))
    assert store.get("a").numbers == {"n": 1}
    store.commit(["a", "c"])
    assert [store.get(name).numbers["n"] for name in "abc"] == [2, 1, 2]
    assert [store.get(name).tensors["v"][0].item() for name in "abc"] == [2.0, 1.0, 2.0]
    assert store.dirty() == ["a", "c"] and store.clients() == ["a", "b", "c"]
    store.mark_clean()
    store.commit(["b"])  # nothing is staged for it any more
    assert store.get("b").numbers == {"n": 1} and store.dirty() == []


def test_a_state_whose_tensors_share_memory_can_go_to_a_file(tmp_path: Path) -> None:
    store = ClientStore(tmp_path / "s", memory_bytes=0)
    flat = torch.arange(6.0)
    tensors = {"private": flat, "best/private": flat, "tail": flat[2:]}  # the best round is the present one
    store.put("a", ClientState(tensors, {}))
    found = store.get("a").tensors
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_only_tensors_that_overlap_are_copied_for_a_file() -> None:
    flat = torch.arange(6.0)
    tensors = {"head": flat[:2], "tail": flat[2:], "whole": flat, "again": flat, "none": flat[3:3]}
    found = unshared(tensors)
    assert [found[name].data_ptr() == tensors[name].data_ptr() for name in ("head", "tail")] == [True, True]
    assert len({tensor.data_ptr() for tensor in found.values() if tensor.numel()}) == 4
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("is_full", [True, False])
def test_states_that_the_disk_refuses_stay_in_memory(tmp_path: Path, is_full: bool, caplog: Any) -> None:
    store = ClientStore(tmp_path / "s", memory_bytes=0)
    if is_full:
        (tmp_path / "s").mkdir()
        for ending in (".json", ".staged.json"):
            (tmp_path / "s" / f"{file_stem('a')}{ending}").symlink_to("/dev/full")
    else:
        (tmp_path / "s").write_text("a file where the folder should be")
    store.put("a", ClientState({"v": torch.zeros(5)}, {"n": 1}))
    store.stage("a", ClientState({"v": torch.ones(5)}, {"n": 2}))
    assert store.get("a").numbers == {"n": 1}
    store.commit(["a"])
    assert store.get("a").numbers == {"n": 2} and store.get("a").tensors["v"].tolist() == [1.0] * 5
    assert caplog.text.count("client states take more than system.state_memory_mb") == 1


def test_a_state_taken_from_the_store_can_be_changed_without_harm(tmp_path: Path) -> None:
    store = ClientStore(tmp_path / "s", 1 << 20)
    store.put("a", ClientState({"v": torch.zeros(1)}, {"n": 1}))
    state = store.get("a")
    state.numbers["n"] = 5
    state.tensors["w"] = torch.ones(1)
    assert store.get("a").numbers == {"n": 1} and "w" not in store.get("a").tensors


@given(st.text(max_size=300), st.text(max_size=300))
def test_file_stems_are_safe_and_differ_when_names_do(one: str, other: str) -> None:
    for name in (one, other):
        stem = file_stem(name)
        assert len(stem) < 80 and "/" not in stem and ".." not in stem and stem.isascii()
    assert (file_stem(one) == file_stem(other)) == (one == other)


def test_seeds_tell_types_and_boundaries_apart() -> None:
    seeds = {
        seed_for(0, "a"), seed_for(0, "a", "b"), seed_for(0, "ab"), seed_for(0, "a", 1), seed_for(0, "a", "1"),
        seed_for(1, "a"), seed_for(0, "a", "b", ""), seed_for(0, "a", "", "b"),
    }  # fmt: skip
    assert len(seeds) == 8 and all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_are_the_same_on_every_machine() -> None:
    assert seed_for(2, "order", "atis", 7) == 9009536665152511571


@pytest.mark.parametrize("field", ["norm", "max_abs", "loss_mean"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_report_with_a_number_that_is_not_finite_is_not_ok(field: str, value: float) -> None:
    assert Report("a").is_ok
    assert not replace(Report("a"), **{field: value}).is_ok
    assert not Report("a", extra={"loss_reduction": value}).is_ok
    assert not Report("a", status="failed:ValueError").is_ok


def test_seeding_gives_torchs_own_bits_and_notes_nothing() -> None:
    torch.manual_seed(5)
    expected, noted = torch.rand(3), len(torch.cuda._queued_calls)
    seed_torch(5, torch.device("cpu"))
    assert torch.equal(torch.rand(3), expected)
    assert len(torch.cuda._queued_calls) == noted


def test_nothing_in_the_package_seeds_kinds_of_devices_that_are_not_used() -> None:
    files = Path(fedtorch.__file__).parent.rglob("*.py")
    assert [path.name for path in files if "torch.manual_seed(" in path.read_text(encoding="utf-8")] == []
