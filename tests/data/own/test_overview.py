"""Figures of `fedtorch data check`, by hand, and the picture."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fedtorch.data.folder import write_client
from fedtorch.data.own.overview import LABELS_NAMED, ClientRows, Overview, _labels, set_divergences, split_digests
from fedtorch.data.own.picture import draw


def made(folder: Path, **clients: dict[str, str]) -> Overview:
    """Clients with splits of one-letter rows, on disk and looked at."""
    found = Overview("toy", {})
    digests = {}
    for client, splits in clients.items():
        write_client(folder, client, {name: [{"text": x} for x in rows] for name, rows in splits.items()}, facts={})
        found.clients[client] = ClientRows({name: len(rows) for name, rows in splits.items()})
        digests |= {(client, name): [x.encode() for x in rows] for name, rows in splits.items()}
    split_digests(digests, found, folder)
    return found


def counts(found: Overview) -> dict[str, tuple[int, int, int]]:
    return {name: (client.inside, client.across, client.leaks) for name, client in found.clients.items()}


def test_rows_that_recur_are_counted_where_they_stand(tmp_path: Path) -> None:
    found = made(
        tmp_path,
        north={"train": "aabx", "test": "ac"},  # a twice in train and once in test; x is west's too
        west={"train": "xy", "test": "bd"},  # b is north's
    )
    assert counts(found) == {"north": (2, 2, 1), "west": (0, 2, 1)}
    assert found.leaks == [
        f"{tmp_path}/north/test.jsonl:1 is {tmp_path}/north/train.jsonl:1",
        f"{tmp_path}/west/test.jsonl:1 is {tmp_path}/north/train.jsonl:3",
    ]


def test_rows_that_stand_once_are_not_counted(tmp_path: Path) -> None:
    found = made(tmp_path, north={"train": "ab", "test": "c"}, west={"train": "d", "test": "e"})
    assert counts(found) == {"north": (0, 0, 0), "west": (0, 0, 0)} and not found.leaks and not found.remarks()


def test_a_shared_test_counts_once_in_all() -> None:
    found = Overview("toy", {}, shared={"test": ("a", "b")})
    found.clients = {"a": ClientRows({"train": 3, "test": 5}), "b": ClientRows({"train": 4, "test": 5})}
    assert found.total().rows == {"train": 7, "test": 5}


@pytest.mark.parametrize(("share", "tokens"), [(0.0, 1), (0.5, 6), (0.95, 10), (1.0, 10)])
def test_quantiles_are_those_of_sorted_lengths(share: float, tokens: int) -> None:
    assert ClientRows(tokens=[10, 9, 8, 7, 6, 5, 4, 3, 2, 1]).quantile(share) == tokens
    assert ClientRows().quantile(share) == 0


def test_a_client_with_the_labels_of_all_has_no_divergence_and_one_without_rows_none() -> None:
    found = Overview("toy", {})
    found.clients = {
        "a": ClientRows(labels=Counter(x=3, y=3)),
        "b": ClientRows(labels=Counter(x=5, y=5)),
        "c": ClientRows(),
    }
    set_divergences(found)
    assert [client.divergence for client in found.clients.values()] == [0.0, 0.0, None]


def test_the_most_frequent_labels_are_named_first_and_five_at_most() -> None:
    counts = {f"l{n}": n for n in range(12)}
    named = _labels(sorted(counts), counts, "train")
    assert named.startswith("l11 (11 of train), l10 (10 of train), l9 (9 of train)") and named.endswith(", ...")
    assert named.count("of train") == LABELS_NAMED
    assert _labels(["a" * 30], {"a" * 30: 1}, "dev") == f"{'a' * 20} (1 of dev)"


@pytest.mark.long
@pytest.mark.parametrize(
    ("clients", "labels"),
    [(1, 0), (3, 2), (410, 45)],
)
def test_a_picture_of_any_partition_is_drawn(clients: int, labels: int, tmp_path: Path) -> None:
    found = Overview("toy $x$", {})
    for k in range(clients):
        own = Counter({f"${k}_{label}": 1 for label in range(labels)})
        found.clients[f"client ${k}^"] = ClientRows({"train": k}, own)
    draw(found, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("clients", "labels", "height", "numbers"),
    [(1, 2, 2.42, 2), (30, 12, 8.8, 360), (31, 12, 9.02, 0), (30, 13, 8.8, 0), (410, 2, 14.0, 0)],
)
def test_a_picture_grows_with_its_clients_and_small_ones_have_numbers(
    clients: int, labels: int, height: float, numbers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of 0.22 inches for each client, and 14 at most; every second of 410 clients is drawn."""
    figures, found = list[Figure](), Overview("toy", {})
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    for place in range(clients):
        own = Counter({f"l{label}": 1 for label in range(labels)})
        found.clients[f"c{place}"] = ClientRows({"train": clients - place}, own)
    draw(found, tmp_path / "a.png")
    heat, bars, _ = figures[0].axes
    assert figures[0].get_figheight() == pytest.approx(height) and len(heat.texts) == numbers
    drawn = [bar.get_width() for bar in bars.patches]
    assert drawn == [*range(clients, 0, -1 if clients <= 400 else -2)]
    assert bars.get_ylim() == (len(drawn) - 0.5, -0.5)  # the largest on top, as in the table of labels beside it
