"""A checkpoint is either whole or not there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from xxhash import xxh3_64_hexdigest

from fedtorch.checkpoint.files import digest_file, entry_of, save_tensors, to_json
from fedtorch.checkpoint.store import Checkpoints, FileEntry
from fedtorch.core.client import ClientState
from fedtorch.core.errors import CheckpointError
from fedtorch.core.server import ServerState
from fedtorch.core.version import VERSION
from fedtorch.lifecycle.status import write_status

CONFIG = {"rounds": 60, "server": {"lr": 1.0, "betas": (0.9, 0.99)}}
FACTS = {"code": "abc"}


def server_state(round: int) -> ServerState:
    tensors = {"weights": torch.full((3000,), float(round)), "momentum": torch.arange(3000.0)}
    return ServerState(tensors, {"server_steps": round, "best_score": float("-inf")}, num_clients=2)


def client_state(round: int, client: str = "atis") -> ClientState:
    tensors = {
        "head": torch.tensor([round, len(client)], dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "ids": torch.arange(5, dtype=torch.int64),
        "generator": torch.get_rng_state(),
        "adam": torch.full((2000,), 0.1 * round),
    }
    return ClientState(tensors, {"cursor": round, "lr": 0.1 + 0.2, "nothing": float("nan")})


def save(checkpoints: Checkpoints, round: int, *clients: str) -> Path:
    entries = {client: [checkpoints.write_client(round, client, client_state(round, client))] for client in clients}
    return checkpoints.write(round, server_state(round), entries, config=CONFIG, facts=FACTS)


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert list(left) == list(right)
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype and torch.equal(tensor, right[name]), name


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2)


def test_what_is_loaded_is_what_was_saved(checkpoints: Checkpoints) -> None:
    save(checkpoints, 12, "atis", "geo/query ü")
    found = Checkpoints(checkpoints.folder, keep=2).latest()
    assert found is not None and (found.round, found.facts) == (12, FACTS)
    server, state = checkpoints.load_server(found), checkpoints.load_client(found, "geo/query ü")
    assert_same(server.tensors, server_state(12).tensors)
    assert (server.numbers, server.num_clients) == (server_state(12).numbers, 2)
    assert_same(state.tensors, client_state(12, "geo/query ü").tensors)
    assert state.numbers["cursor"] == 12 and state.numbers["lr"] == 0.1 + 0.2
    assert state.numbers["nothing"] != state.numbers["nothing"]
    assert checkpoints.load_client(found, "never trained") == ClientState()


EVERY_KIND = {
    "z last": torch.arange(5.0),
    "a": torch.arange(3, dtype=torch.uint8),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "half": torch.full((3,), 0.1, dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "none": torch.zeros(0, 3),
    "transposed": torch.arange(6.0).view(2, 3).T,
    "ü": torch.arange(2),
}


@pytest.mark.parametrize(
    "tensors",
    [{}, EVERY_KIND, dict(reversed(EVERY_KIND.items())), dict.fromkeys("ab", EVERY_KIND["z last"])],
)
@pytest.mark.parametrize("metadata", [{}, {"state": '{"ü": 1}'}])
def test_the_digest_of_what_is_written_is_that_of_the_file(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "x.safetensors"
    entry = entry_of("x", path, save_tensors(path, tensors, metadata))
    assert (entry.bytes, entry.digest) == (path.stat().st_size, digest_file(path))


def test_a_run_without_checkpoints_has_none(checkpoints: Checkpoints) -> None:
    assert checkpoints.latest() is None
    (checkpoints.folder / "round_000003").mkdir(parents=True)  # a folder without a manifest does not exist
    assert checkpoints.latest() is None
    with pytest.raises(CheckpointError, match="file system that all ranks share"):
        checkpoints.at(7)


def test_tensors_that_share_memory_or_are_views_are_saved(checkpoints: Checkpoints) -> None:
    flat = torch.arange(12.0)
    tensors = {"a": flat[:6], "b": flat[6:], "same": flat[:6], "turned": flat.view(3, 4).T}
    checkpoints.write_client(1, "c", ClientState(dict(tensors)))
    entry = checkpoints.write_client(2, "c", ClientState(dict(tensors)))
    checkpoints.write(2, server_state(2), {"c": [entry]}, config={}, facts={})
    assert_same(checkpoints.load_client(checkpoints.at(2), "c").tensors, tensors)


@pytest.mark.parametrize("digest", [0, 2**64 - 1, 0x0123456789ABCDEF])
def test_an_entry_travels_as_numbers(digest: int) -> None:
    entry = FileEntry("clients/atis-" + "0" * 8 + "-r000012.safetensors", 2**40 + 1, digest)
    back = FileEntry.from_numbers("atis", 12, [float(number) for number in entry.to_numbers()])
    assert (back.bytes, back.digest) == (entry.bytes, digest)


def test_unchanged_clients_refer_to_their_earlier_file(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1, "atis", "yelp")
    save(checkpoints, 2, "atis")
    resumed = Checkpoints(checkpoints.folder, keep=2)
    found = resumed.latest()
    assert found is not None and found.clients["yelp"][0].endswith("-r000001.safetensors")
    resumed.load_server(found)
    save(resumed, 3, "atis")
    found = resumed.at(3)
    assert resumed.load_client(found, "yelp").numbers["cursor"] == 1
    assert resumed.load_client(found, "atis").numbers["cursor"] == 3


def test_the_last_ones_are_kept_with_the_client_files_they_refer_to(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1, "atis", "yelp", "imdb")
    for round in range(2, 6):
        save(checkpoints, round, "atis", *(["imdb"] if round == 3 else []))
    folders = sorted(path.name for path in checkpoints.folder.iterdir())
    assert folders == ["clients", "round_000004", "round_000005"]
    rounds = sorted(path.name.split("-r")[1][:6] for path in (checkpoints.folder / "clients").iterdir())
    assert rounds == ["000001", "000003", "000004", "000005"]  # yelp, imdb, atis, atis


def test_files_that_a_worker_ahead_of_the_server_writes_are_not_deleted(checkpoints: Checkpoints) -> None:
    ahead = checkpoints.write_client(9, "yelp", client_state(9))
    save(checkpoints, 8, "atis")
    assert (checkpoints.folder / ahead.path).exists()


def test_going_back_deletes_the_later_checkpoints(checkpoints: Checkpoints) -> None:
    for round in (1, 2, 3):
        save(checkpoints, round, "atis")
    resumed = Checkpoints(checkpoints.folder, keep=2)
    resumed.load_server(resumed.open(checkpoints.folder / "round_000002"))
    save(resumed, 3, "atis")
    found = resumed.latest()
    assert found is not None and found.round == 3
    resumed.load_server(resumed.at(2))
    resumed.write(2, server_state(2), {}, config={}, facts={})  # the same round again
    found = resumed.latest()
    assert found is not None and (found.round, found.config) == (2, {})
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["clients", "round_000002"]


def damage_truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damage_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_zero(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1000] + bytes(min(1000, len(data))))


def damage_delete(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_zero, damage_delete])
@pytest.mark.parametrize("victim", ["server.safetensors", "server.json", "manifest.json", "clients/atis"])
def test_a_damaged_checkpoint_is_skipped_and_the_file_is_named(
    checkpoints: Checkpoints, victim: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    save(checkpoints, 1, "atis", "yelp")
    folder = save(checkpoints, 2, "atis")
    (path,) = checkpoints.folder.glob(f"{victim}-*-r000002.*") if "/" in victim else [folder / victim]
    damage(path)
    found = checkpoints.latest()
    assert found is not None and found.round == 1
    assert_same(checkpoints.load_server(found).tensors, server_state(1).tensors)
    if (victim, damage) != ("manifest.json", damage_delete):  # without a manifest there never was a checkpoint
        assert "DAMAGED" in caplog.text and str(path) in caplog.text
    save(checkpoints, 2, "atis")  # and the next save takes its place
    found = checkpoints.latest()
    assert found is not None and found.round == 2


def test_no_bit_of_a_manifest_can_flip_unseen(checkpoints: Checkpoints) -> None:
    path = save(checkpoints, 1, "atis") / "manifest.json"
    good, found = path.read_bytes(), checkpoints.at(1)
    for place in range(0, len(good), 3):
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        try:
            assert checkpoints.at(1) == found, place  # a space between tokens
        except CheckpointError:
            pass


def test_if_every_checkpoint_is_damaged_the_run_ends(checkpoints: Checkpoints) -> None:
    for round in (1, 2):
        damage_flip(save(checkpoints, round) / "server.safetensors")
    with pytest.raises(CheckpointError, match=r"(?s)round_000002.*round_000001.*--resume never"):
        checkpoints.latest()
    checkpoints.set_aside()
    assert checkpoints.latest() is None


def test_a_client_file_damaged_later_is_found_when_it_is_loaded(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1, "atis")
    found = checkpoints.at(1)
    damage_flip(found.locate(found.clients["atis"][0]))
    with pytest.raises(CheckpointError, match="other content"):
        checkpoints.load_client(found, "atis")


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_disk_that_refuses_leaves_the_last_checkpoint(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    save(checkpoints, 1, "atis")
    real, calls = getattr(os, call), 0

    def fail(*args: object) -> None:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise OSError(28, "No space left on device")
        real(*args)

    failures = 0
    for fails_at in range(1, 12):
        calls = 0
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            try:
                save(checkpoints, 2, "atis")
            except CheckpointError as error:
                failures += 1
                assert "No space left" in str(error) and "bytes" in str(error)
            else:
                break
        assert not list(checkpoints.folder.rglob("*.partial"))
        found = Checkpoints(checkpoints.folder, keep=1).latest()
        assert found is not None
        assert found.round == 1 or (call, fails_at) == ("fsync", 7)  # only the folder's name was not synced yet
        shutil.rmtree(checkpoints.folder / "round_000002", ignore_errors=True)
    assert failures == {"replace": 2, "fsync": 7}[call]
    found = checkpoints.latest()
    assert found is not None and found.round == 2


@pytest.mark.processes
def test_a_full_disk_is_an_error_with_path_and_need(tmp_path: Path) -> None:
    script = """
import resource, sys, torch
from pathlib import Path
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.core.client import ClientState
from fedtorch.core.errors import CheckpointError
from fedtorch.core.server import ServerState
from fedtorch.core.version import VERSION
checkpoints = Checkpoints(Path(sys.argv[1]), keep=1)
checkpoints.write(1, ServerState({"weights": torch.zeros(10)}), {}, config={}, facts={})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
state = {"weights": torch.zeros(100_000)}
for write in (
    lambda: checkpoints.write(2, ServerState(state), {}, config={}, facts={}),
    lambda: checkpoints.write_client(2, "atis", ClientState(state)),
):
    try:
        write()
    except CheckpointError as error:
        print(error)
print(checkpoints.latest().round)
"""
    result = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    first, second, last = result.stdout.splitlines()
    assert "round_000002" in first and "400000 bytes" in first and "too large" in first
    assert "clients/atis" in second and "400000 bytes" in second
    assert last == "1" and not list(tmp_path.rglob("*.partial"))


def test_leftovers_of_a_dead_process_are_ignored_and_removed(checkpoints: Checkpoints) -> None:
    folder = save(checkpoints, 1, "atis")
    shutil.copytree(folder, folder.with_name("round_000002.partial"))
    torn = checkpoints.folder / "clients" / "atis-00000000-r000001.safetensors.77.partial"
    torn.write_bytes(b"torn")
    found = checkpoints.latest()
    assert found is not None and found.round == 1
    save(checkpoints, 2, "atis")
    assert not list(checkpoints.folder.rglob("*.partial"))


def test_a_process_may_die_while_a_checkpoint_is_replaced(checkpoints: Checkpoints) -> None:
    folder = save(checkpoints, 1, "atis")
    folder.rename(folder.with_name("round_000001.old"))  # between the two renames
    found = checkpoints.latest()
    assert found is not None and found.round == 1
    assert_same(checkpoints.load_server(found).tensors, server_state(1).tensors)


def test_ranks_write_different_clients_at_once(checkpoints: Checkpoints) -> None:
    entries: dict[str, list[FileEntry]] = {}

    def home(clients: list[str]) -> None:
        for client in clients:
            entries[client] = [checkpoints.write_client(1, client, client_state(1, client))]

    threads = [threading.Thread(target=home, args=([f"c{i}{j}" for j in range(5)],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    checkpoints.write(1, server_state(1), entries, config={}, facts={})
    found = checkpoints.latest()
    assert found is not None and len(found.clients) == 20


def test_a_client_file_the_server_does_not_see_is_an_error(checkpoints: Checkpoints) -> None:
    entry = checkpoints.write_client(1, "atis", client_state(1))
    (checkpoints.folder / entry.path).unlink()
    with pytest.raises(CheckpointError, match="`atis`.*no such file.*all ranks share"):
        checkpoints.write(1, server_state(1), {"atis": [entry]}, config={}, facts={})
    assert checkpoints.latest() is None


def test_the_ranks_of_a_worker_write_parts_of_one_clients_state(checkpoints: Checkpoints) -> None:
    first, second = ClientState({"a": torch.ones(2)}, {"n": 1}), ClientState({"b": torch.zeros(3)}, {"m": 2})
    entries = [checkpoints.write_client(1, "atis", part, place) for place, part in enumerate((first, second))]
    checkpoints.write(1, server_state(1), {"atis": entries}, config={}, facts={})
    found = Checkpoints(checkpoints.folder, keep=1).latest()
    assert found is not None and len(found.clients["atis"]) == 2
    whole = checkpoints.load_client(found, "atis")
    assert set(whole.tensors) == {"a", "b"} and whole.numbers == {"n": 1, "m": 2}
    assert set(checkpoints.load_client(found, "atis", lambda name: name in "bn").tensors) == {"b"}
    save(checkpoints, 2, "atis")  # by one rank again: the parts are replaced
    assert len(checkpoints.at(2).clients["atis"]) == 1
    save(checkpoints, 3, "atis")
    assert not list(checkpoints.folder.glob("clients/*part1*"))


def test_another_config_is_refused_field_by_field(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)
    found = checkpoints.at(1)

    def difference(old: dict, new: dict) -> list[tuple[str, str, str]]:
        return [(key, str(old[key]), str(new[key])) for key in old if old[key] != new[key]]

    checkpoints.check_fits(found, CONFIG, difference, FACTS)  # tuples and lists are the same thing in a file
    with pytest.raises(CheckpointError, match=r"(?s)rounds was 60 and is now 61.*never.*run\.dir.*--resume force"):
        checkpoints.check_fits(found, {**CONFIG, "rounds": 61}, difference)
    with pytest.raises(CheckpointError, match="code: 'abc' -> 'def'"):
        checkpoints.check_fits(found, CONFIG, difference, {"code": "def"})


def test_another_runs_checkpoint_can_be_adopted(checkpoints: Checkpoints, tmp_path: Path) -> None:
    folder = save(checkpoints, 3, "atis", "yelp")
    other = Checkpoints(tmp_path / "other" / "checkpoints", keep=1)
    found = other.adopt(other.open(folder))
    shutil.rmtree(checkpoints.folder)
    other.load_server(found)
    save(other, 4, "atis")
    assert other.load_client(other.at(4), "yelp").numbers["cursor"] == 3
    with pytest.raises(CheckpointError, match="name a folder"):
        other.open(tmp_path / "nothing")


def test_a_manifest_cannot_point_outside(checkpoints: Checkpoints) -> None:
    path = save(checkpoints, 1, "atis") / "manifest.json"
    manifest = json.loads(path.read_bytes())["manifest"]
    manifest["files"]["clients/../../x-r000001.safetensors"] = manifest["files"].pop(manifest["clients"]["atis"][0])
    manifest["clients"]["atis"] = "clients/../../x-r000001.safetensors"
    path.write_text(to_json({"manifest": manifest, "xxh3": xxh3_64_hexdigest(to_json(manifest).encode())}))
    with pytest.raises(CheckpointError, match="no file of a checkpoint"):
        checkpoints.at(1)


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and give it the digest that goes with it."""
    manifest = json.loads(path.read_bytes())["manifest"]
    change(manifest)
    path.write_text(to_json({"manifest": manifest, "xxh3": xxh3_64_hexdigest(to_json(manifest).encode())}))


def test_a_run_folder_of_another_form_names_the_version_that_reads_it_and_is_left_as_it_is(
    checkpoints: Checkpoints,
) -> None:
    save(checkpoints, 1, "atis")
    path = save(checkpoints, 2, "atis") / "manifest.json"
    assert json.loads(path.read_bytes())["manifest"]["fedtorch"] == VERSION
    forge(path, lambda manifest: manifest.update(form=7, fedtorch="0.9.3"))
    before = path.read_bytes()
    with pytest.raises(
        CheckpointError, match="was written by fedtorch 0.9.3 in form 7; .* Go on with fedtorch 0.9.3"
    ) as error:
        checkpoints.latest()
    assert error.value.exit_code == 8 and "--resume never" not in str(error.value), (
        "not the checkpoint before it either"
    )
    assert path.read_bytes() == before


def test_a_run_folder_of_before_forms_had_numbers_is_read(checkpoints: Checkpoints) -> None:
    path = save(checkpoints, 1, "atis") / "manifest.json"
    forge(path, lambda manifest: (manifest.pop("form"), manifest.pop("fedtorch")))
    found = checkpoints.latest()
    assert found is not None and found.round == 1


def another_client(manifest: dict[str, Any]) -> None:
    manifest["clients"]["yelp"] = manifest["clients"]["atis"]


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "round": (lambda m: m.update(round=2), "is of round 2, but its folder is round_000001"),
    "round of another kind": (lambda m: m.update(round="1"), "has no `round`, or not as int"),
    "no facts": (lambda m: m.pop("facts"), "has no `facts`, or not as dict"),
    "files as a list": (lambda m: m.update(files=[]), "has no `files`, or not as dict"),
    "no server file": (lambda m: m["files"].pop("server.json"), "does not list server.json"),
    "no size": (lambda m: m["files"]["server.json"].pop("bytes"), "has no size and digest of 'server.json'"),
    "another client": (another_client, "lists 'clients/atis-"),
    "renamed client": (lambda m: m.update(clients={"yelp": m["clients"]["atis"]}), "for client 'yelp', whose file"),
    "no client": (lambda m: m.update(clients={}), "which is of no client"),
    "a client of numbers": (lambda m: m["clients"].update(atis=[1]), "lists no files of client 'atis'"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_manifest_that_contradicts_itself_or_its_folder_is_refused(checkpoints: Checkpoints, forgery: str) -> None:
    change, problem = FORGERIES[forgery]
    path = save(checkpoints, 1, "atis") / "manifest.json"
    forge(path, change)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.at(1)
    assert str(caught.value).startswith(str(path)) and problem in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"xxh3": 1}', "[]", '{"manifest": {}, "xxh3": []}', "\0", "9" * 5000])
def test_what_is_no_manifest_at_all_is_refused(checkpoints: Checkpoints, text: str) -> None:
    path = save(checkpoints, 1, "atis") / "manifest.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match="manifest.json"):
        checkpoints.at(1)


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "{}", '{"names": ["x"], "numbers": {}, "num_clients": 1}'])
def test_a_file_of_another_form_with_the_right_digest_is_refused(checkpoints: Checkpoints, content: str) -> None:
    folder = save(checkpoints, 1, "atis")
    (folder / "server.json").write_text(content)
    entry = {"bytes": len(content), "xxh3": f"{digest_file(folder / 'server.json'):016x}"}
    forge(folder / "manifest.json", lambda m: m["files"].update({"server.json": entry}))
    with pytest.raises(
        CheckpointError, match="server.json is not what a checkpoint has there|server.safetensors has other tensors"
    ):
        checkpoints.load_server(checkpoints.at(1))


def test_the_status_file_ends_with_code_reason_and_command(tmp_path: Path) -> None:
    write_status(tmp_path / "run", code=None, reason="training", command="python -m fedtorch.main", round=0)
    path = tmp_path / "run" / "status.json"
    assert json.loads(path.read_text())["state"] == "running"
    write_status(tmp_path / "run", code=75, reason="signal 15", command="python -m fedtorch.main", round=3)
    status = json.loads(path.read_text())
    assert (status["state"], status["round"]) == ("interrupted", 3)
    assert list(status.items())[-3:] == [("code", 75), ("reason", "signal 15"), ("command", "python -m fedtorch.main")]
    assert [p.name for p in path.parent.iterdir()] == ["status.json"]


def test_what_is_set_aside_is_whole_until_it_is_dropped(checkpoints: Checkpoints) -> None:
    assert not checkpoints.set_aside() and not checkpoints.aside.exists()
    save(checkpoints, 1, "atis")
    assert checkpoints.set_aside()
    assert Checkpoints(checkpoints.aside, keep=2).latest() is not None and checkpoints.latest() is None
    checkpoints.write_client(1, "atis", client_state(1))  # of a run that dies before its manifest
    assert not checkpoints.set_aside()
    assert Checkpoints(checkpoints.aside, keep=2).latest() is not None and not checkpoints.folder.exists()
    save(checkpoints, 2, "yelp")
    checkpoints.set_aside()  # what has a checkpoint of its own takes the place of what is older
    found = Checkpoints(checkpoints.aside, keep=2).latest()
    assert found is not None and found.round == 2
    checkpoints.drop_aside()
    assert not checkpoints.aside.exists()


def test_what_is_set_aside_stays_on_its_disk_where_the_folder_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk" / "states").mkdir(parents=True)
    (tmp_path / "checkpoints").symlink_to(tmp_path / "disk" / "states")
    linked = Checkpoints(tmp_path / "checkpoints", keep=2)
    save(linked, 1, "atis")
    linked.set_aside()
    save(linked, 1, "atis")
    assert linked.aside == tmp_path / "disk" / "states.before" and linked.latest() is not None


def test_a_folder_that_cannot_be_set_aside_is_left_as_it_is(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 1, "atis")

    def refuse(*_: object) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(CheckpointError, match=r"cannot be renamed to .*checkpoints.before .*busy.*set\n? ?`run.dir`"):
        checkpoints.set_aside()
    assert checkpoints.latest() is not None
