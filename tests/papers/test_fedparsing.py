"""FedParsing: figures worked out by hand, and the traps of its rules (docs/fedparsing.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import make_config, make_runner
from parsing_toy import Scalar, Toy
from torch import Tensor, nn

import fedtorch.rounds.cohort
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fedparsing import FedParsing, MaskedWords
from fedtorch.algorithms.mean_teacher import Consistency, MeanTeacher, Student, Teacher
from fedtorch.config.schema import ClientConfig, ClientsConfig, Config, EvalConfig
from fedtorch.core.client import Client
from fedtorch.core.errors import ConfigError
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.core.weights import Partition
from fedtorch.data.hydranet import Gold, HydraNetRow, Question
from fedtorch.models.consistency import mask_words, probabilities, squared_distance
from fedtorch.models.networks.hydranet import Query, best_spans, decode, masked, row_losses, where_num_scores
from fedtorch.rounds.runner import Runner
from fedtorch.tasks.base import SERVER
from fedtorch.tasks.wikisql_measures import logical_form, measures
from fedtorch.train.engine import Engine

close = {"rel": 1e-9, "abs": 1e-10}


def wide(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_the_loss_of_a_row_is_the_sum_of_its_heads() -> None:
    outputs = {
        "column_func": wide([[1.0, -1.0, -0.5], [-2.0, 0.5, 0.0]]),
        "agg": wide([[0, 0, 0, 2.0, 0, 0], [1.0, 0, 0, 0, 0, 0]]),
        "op": wide([[1.0, 0, 0, 0], [0, 1.5, 0, 0]]),
        "where_num": wide([[0, 1.0, 0, 0, 0], [0, 2.0, 1.0, 0, 0]]),
        **masked(
            wide([[1.0, 0, 0, 0, 0, 0], [0, 0, 0, 2.0, 0, 5.0]]),
            wide([[1.0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0, 5.0]]),
            torch.tensor([[1, 1, 1, 1, 1, 0]] * 2),
        ),
    }
    losses = row_losses(outputs, torch.tensor([[1, 0, 3, 0, 1, 0, 0], [0, 1, 0, 1, 1, 3, 4]]))
    expected = {
        "agg": [0.51681351, 0.0],
        "select": [0.31326169, 0.12692801],
        "where": [0.31326169, 0.47407698],
        "irrelevant": [0.47407698, 0.69314718],
        "where_num": [0.90483244, 0.57317222],
        "op": [0.0, 0.51245858],
        "start": [0.90483244, 0.4326529],
        "end": [0.90483244, 0.90483244],
    }
    assert set(losses) == set(expected)
    for name, values in expected.items():
        assert losses[name].tolist() == pytest.approx(values, abs=1e-8), name
    rows = torch.stack(list(losses.values())).sum(0)
    assert rows.tolist() == pytest.approx([4.33191119, 3.71726832], abs=1e-8)
    assert float(rows.mean()) == pytest.approx(4.02458976, abs=1e-8)


def test_a_query_is_decoded_as_hydranet_does() -> None:
    outputs = {
        "column_func": wide([[2.0, -3.0, -2.0], [-1.0, 1.5, -1.0], [-2.0, 0.5, 0.0]]),
        "agg": wide([[0, 0, 0, 3.0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]),
        "op": wide([[1, 0, 0, 0], [0, 2.0, 0, 0], [1.0, 0, 0.5, 0]]),
        "where_num": wide([[0, 1.0, 0.9, 0, 0], [0, 0.2, 2.0, 0, 0], [0, 1.5, 0, 0, 0]]),
        "start": wide([[0.0] * 8, [0, 0, 0, 0.5, 2.0, 0, 3.0, 9.0], [0, 0, 0, 1.0, 0, 0, 0, 0]]),
        "end": wide([[0.0] * 8, [0, 0, 0, 0, 0, 2.5, 0.4, 9.0], [0, 0, 0, 2.0, 1.5, 0, 0, 0]]),
    }
    irrelevant = outputs["column_func"][:, 2].numpy()
    assert (1 / (1 + np.exp(irrelevant))).tolist() == pytest.approx([0.880797078, 0.7310585786, 0.5], abs=1e-10)
    scores = where_num_scores(irrelevant, outputs["where_num"].numpy())
    expected = [-2.2313923168, -1.3899480693, -1.1636893607, -2.2313923168, -2.2313923168]
    assert scores.tolist() == pytest.approx(expected, abs=1e-10)
    # position 7 is the closing special token, so the question's tokens are 3 to 6
    (query,) = decode(outputs, [(3, 6)] * 3, [3])
    assert (query.sel, query.agg, query.where) == (0, 3, (1, 2))
    assert query.conditions[1] == (1, (4, 5)) and query.conditions[2] == (0, (3, 3))


def test_questions_of_a_batch_are_decoded_each_by_itself() -> None:
    torch.manual_seed(0)
    sizes = {"column_func": 3, "agg": 6, "op": 4, "where_num": 5, "start": 9, "end": 9}
    outputs = {name: torch.randn(5, size) for name, size in sizes.items()}
    spans = [(2, 6), (2, 6), (3, 7), (3, 7), (3, 7)]
    both = decode(outputs, spans, [2, 3])
    first = decode({name: rows[:2] for name, rows in outputs.items()}, spans[:2], [2])
    second = decode({name: rows[2:] for name, rows in outputs.items()}, spans[2:], [3])
    assert both == [*first, *second]


def test_a_question_without_tokens_gets_an_empty_place() -> None:
    assert best_spans(np.zeros((1, 4)), np.zeros((1, 4)), [(3, 2)]) == [(3, 3)]


METRIC_CASES = [
    (Gold(0, 2, 1, {1: (0, (5, 6))}, ()), Query(0, 2, (1,), {1: (0, (5, 6))})),
    (Gold(3, 0, 2, {1: (1, (4, 4)), 3: (0, (7, 8))}, ()), Query(3, 0, (1,), {1: (1, (4, 4)), 3: (0, (7, 8))})),
    (Gold(1, 1, 1, {0: (2, (3, 3))}, ()), Query(0, 1, (2,), {0: (2, (3, 4)), 2: (0, (3, 3))})),
    (Gold(0, 0, 0, {}, ()), Query(0, 0, (), {})),
]


def test_the_seven_measures_are_those_of_hydranets_evaluator() -> None:
    found = [measures(gold, query) for gold, query in METRIC_CASES]
    names = ("agg", "sel", "wn", "wc", "op", "val", "overall")
    expected = [(1, 1, 1, 1, 1, 1, 1), (1, 1, 0, 0, 1, 1, 0), (0, 1, 1, 0, 1, 0, 0), (1, 1, 1, 1, 1, 1, 1)]
    assert found == [dict(zip(names, row)) for row in expected]
    means = {name: round(100 * sum(one[name] for one in found) / len(found), 1) for name in found[0]}
    assert means == {  # as HydraNet prints them
        "overall": 50.0,
        "agg": 75.0,
        "sel": 100.0,
        "wn": 75.0,
        "wc": 50.0,
        "op": 100.0,
        "val": 75.0,
    }


def test_two_conditions_on_one_column_can_never_be_right() -> None:
    gold = Gold(0, 0, 2, {1: (0, (5, 6))}, ((1, 1, "a"), (1, 0, "b")))
    for where in ((1,), (1, 2)):
        query = Query(0, 0, where, {1: (0, (5, 6)), 2: (0, (5, 6))})
        assert measures(gold, query)["overall"] == 0


def test_the_logical_form_compares_texts_and_may_differ_from_overall() -> None:
    # "red or red": the value stands twice; the second place is another position and the same text
    gold = Gold(0, 0, 1, {1: (0, (3, 3))}, ((1, 0, "Red"),))
    question = Question([HydraNetRow([0] * 7, 3, 6)] * 2, "red or red", [0, 1, 2], [0, 4, 7], gold)
    query = Query(0, 0, (1,), {1: (0, (5, 5))})
    assert logical_form(question, query) == 1 and measures(gold, query)["overall"] == 0
    assert logical_form(question, query._replace(sel=1)) == 0
    assert logical_form(question, query._replace(where=())) == 0
    assert logical_form(question, query._replace(conditions={1: (1, (5, 5))})) == 0


def test_the_teacher_follows_as_the_groups_say() -> None:
    students = [[2.0, 1.0], [3.0, -1.0], [4.0, 0.5]]
    averaged = [[1.01, 0.01], [1.0299, -0.0001], [1.059601, 0.004901]]
    expected = {"ema": averaged, "frozen": [[1.0, 0.0]] * 3, "copy": students}
    for update, states in expected.items():
        engine = engine_of(Scalar(0.0, size=2))
        settings = Teacher(update=update, lam=0.99)  # type: ignore[arg-type]
        teacher = MeanTeacher(Toy(), engine, wide([1.0, 0.0]), settings, Consistency(), ["w"])
        for student, state in zip(students, states):
            engine.flat.copy_(wide(student))
            teacher.update()
            assert teacher.weights["w"].tolist() == pytest.approx(state, **close), update


def test_per_step_lambda_rises_from_a_half() -> None:
    engine = engine_of(Scalar(0.0))
    teacher = MeanTeacher(
        Toy(), engine, wide([0.0]), Teacher(update="ema", lam=0.7, every="step"), Consistency(), ["w"]
    )
    engine.flat.fill_(1.0)
    found = []
    for _ in range(4):
        teacher.update()
        found.append(float(teacher.weights["w"]))
    assert found == pytest.approx([0.5, 2 / 3, 1 - 0.7 / 3, 1 - 0.49 / 3], **close)


def test_the_server_is_one_more_voter() -> None:
    w_s, students = wide([1.0, 2.0, 3.0]), wide([[2.0, 0.0, 3.0], [0.0, 4.0, 6.0], [5.0, 2.0, 0.0]])
    weights = FedParsing().weigh([Report(str(k), loss_max=1.0) for k in range(3)])
    assert weights == [0.25] * 3
    server = ServerState({"weights": w_s.clone()})
    FedParsing().server_update(server, (wide(weights)[:, None] * (w_s - students)).sum(0))
    assert server.weights.tolist() == pytest.approx([2.0, 2.0, 3.0], **close)


def test_the_consistency_loss_sums_or_averages_over_classes() -> None:
    student = {"agg": wide([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]])}
    teacher = {"agg": wide([[2.0, 0.0, -2.0], [0.5, 1.0, 0.0]])}
    ours = [[0.6652409558, 0.2447284711, 0.0900305732], [0.1065069789, 0.7869860422, 0.1065069789]]
    theirs = [[0.8668133322, 0.1173104278, 0.01587624], [0.3071958857, 0.5064803911, 0.1863237232]]
    assert probabilities(student)["agg"].flatten().tolist() == pytest.approx(sum(ours, []), **close)
    assert probabilities(teacher)["agg"].flatten().tolist() == pytest.approx(sum(theirs, []), **close)
    summed = squared_distance(student, teacher, heads=["agg"]).mean()
    averaged = squared_distance(student, teacher, heads=["agg"], mean=True).mean()
    assert [float(summed), float(averaged)] == pytest.approx([0.093847908, 0.031282636], **close)


def test_padding_takes_no_part_in_the_consistency_loss() -> None:
    mask = torch.tensor([[1, 1, 0]])
    short, padded = wide([[1.0, 2.0]]), wide([[1.0, 2.0, 7.0]])
    other = wide([[0.0, 1.5]]), wide([[0.0, 1.5, -3.0]])
    for mean, logits in ((False, False), (True, False), (True, True)):
        cut = squared_distance({"start": short}, {"start": other[0]}, heads=["start"], mean=mean, logits=logits)
        full = squared_distance(
            masked(padded, padded, mask), masked(other[1], other[1], mask), heads=["start"], mean=mean, logits=logits
        )
        assert float(cut) == pytest.approx(float(full), **close)


def test_masked_words_keep_the_shares() -> None:
    torch.manual_seed(0)
    ids, is_question = torch.full((200, 100), 7), torch.zeros(200, 100, dtype=torch.bool)
    is_question[:, 50:] = True
    changed, chosen = mask_words(ids, is_question, mask_id=4, vocab_size=1000, share=0.15, masked=0.8, random=0.1)
    assert not chosen[:, :50].any() and torch.equal(changed[~chosen], ids[~chosen])
    # 10 000 places: four standard deviations of each share
    assert float(chosen[:, 50:].float().mean()) == pytest.approx(0.15, abs=0.015)
    assert float((changed[chosen] == 4).float().mean()) == pytest.approx(0.8, abs=0.042)
    assert float((changed[chosen] == 7).float().mean()) == pytest.approx(0.1, abs=0.031)


def engine_of(model: nn.Module) -> Engine:
    return Engine(model, Partition(), torch.device("cpu"))


TOY = Toy(clients={"0": (1.0, 0.2), "1": (0.5, -0.1), "2": (1.5, 0.0)})
COHORTS = (("0", "1"), ("2", "0"))
EXPECTED: dict[str, tuple[list[list[float]], list[float], list[float]]] = {
    "ema": (
        [[0.778429568, 0.895442688], [1.352913548, 1.20359761]],
        [0.8496240853, 1.3031415687],
        [0.875, 1.352913548, 1.6080171324],
    ),
    "frozen": (
        [[0.781804352, 0.895335168], [1.35352616, 1.2093630199]],
        [0.8507131733, 1.30547178],
        [0.875, 1.35352616, 1.6093278762],
    ),
    "copy": (
        [[0.754951232, 0.896168448], [1.34864744, 1.1636149101]],
        [0.8420398933, 1.28696993],
        [0.875, 1.34864744, 1.5989205856],
    ),
}


TEACHERS: tuple[Any, ...] = ("ema", "frozen", "copy")


def toy_config(folder: Path, algorithm: FedParsing, task: Toy = TOY, **changes: Any) -> Config:
    settings: dict[str, Any] = {
        "client": ClientConfig(optimizer="sgd", lr=0.1, batch_size=10, epochs=3),
        "per_client": {SERVER: {"lr": 0.25, "epochs": 2}},
        "clients": ClientsConfig(per_round=2),
        "rounds": 2,
    }
    return make_config(folder, task, algorithm, **{**settings, **changes})


class Watched:
    """A run of which every student, w_avg and w_s^t is kept."""

    def __init__(self, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.students: list[list[float]] = [[], []]
        self.averages: list[float] = []
        self.served: list[float] = []
        cls = type(runner.context.algorithm)
        update, step, train = cls.client_update, cls.server_update, cls.server_train

        def client_update(algorithm: Any, job: Any) -> Any:
            result = update(algorithm, job)
            self.students[job.round].append(float(job.engine.flat[0]))
            return result

        def server_update(algorithm: Any, server: ServerState, grad: Tensor) -> None:
            step(algorithm, server, grad)
            self.averages.append(float(server.weights[0]))

        def server_train(algorithm: Any, server: ServerState, job: Any) -> None:
            train(algorithm, server, job)
            self.served.append(float(server.weights[0]))

        monkeypatch.setattr(cls, "client_update", client_update)
        monkeypatch.setattr(cls, "server_update", server_update)
        monkeypatch.setattr(cls, "server_train", server_train)
        self.result = runner.run()


@pytest.mark.parametrize("update", EXPECTED)
def test_whole_rounds_server_broadcast_clients_average_server(
    update: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cohort(clients: Sequence[Client], *_: Any, round: int, **__: Any) -> list[tuple[Client, int]]:
        by_name = {client.name: client for client in clients}
        return [(by_name[name], 1) for name in COHORTS[round]]

    monkeypatch.setattr(fedtorch.rounds.cohort, "cohort", cohort)
    algorithm = FedParsing(teacher=Teacher(update=update, lam=0.9), decoder=("w",))
    run = Watched(make_runner(toy_config(tmp_path, algorithm)), monkeypatch)
    students, averages, served = EXPECTED[update]
    assert run.served == pytest.approx(served, **close)
    # integers at a common power of two carry the sum: 2^-30 of the largest update or better
    assert run.averages == pytest.approx(averages, **close)
    assert run.students[0] == pytest.approx(students[0], **close)
    assert run.students[1] == pytest.approx(students[1], **close)


@pytest.mark.parametrize(("group", "default"), [("fedparsing", "frozen"), ("fedparsing_ema", "ema")])
def test_a_group_is_its_teachers_update(group: Any, default: Any, tmp_path: Path) -> None:
    by_group = FedParsing(group=group, teacher=Teacher(lam=0.5), decoder=("w",))
    by_key = replace(by_group, teacher=Teacher(update=default, lam=0.5))
    digests = {make_runner(toy_config(tmp_path / str(i), a)).run().digest for i, a in enumerate((by_group, by_key))}
    assert len(digests) == 1


def test_with_one_epoch_a_teacher_never_moves_and_a_warning_says_so(tmp_path: Path, caplog: Any) -> None:
    once = {"client": ClientConfig(optimizer="sgd", lr=0.1, batch_size=10, epochs=1)}
    algorithms = {update: FedParsing(teacher=Teacher(update=update, lam=0.5), decoder=("w",)) for update in TEACHERS}
    with caplog.at_level("WARNING", "fedtorch"):
        digests = {u: make_runner(toy_config(tmp_path / u, a, **once)).run().digest for u, a in algorithms.items()}
    assert len(set(digests.values())) == 1
    assert caplog.text.count("client.epochs is 1 and the teacher is updated after each epoch") == 2  # not of frozen
    caplog.clear()
    by_step = FedParsing(teacher=Teacher(update="ema", every="step"), decoder=("w",))
    make_runner(toy_config(tmp_path / "steps", by_step, **once))
    make_runner(toy_config(tmp_path / "epochs", algorithms["ema"]))
    assert "client.epochs" not in caplog.text


@pytest.mark.parametrize("update", TEACHERS)
@pytest.mark.parametrize("scope", ["decoder", "full"])
def test_without_noise_clients_send_back_what_they_received_and_a_warning_says_so(
    update: Any, scope: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    quiet = replace(TOY, clients={"0": (1.0, 0.0), "1": (0.5, 0.0), "2": (1.5, 0.0)})
    algorithm = FedParsing(teacher=Teacher(update=update, scope=scope), decoder=("w",))
    with caplog.at_level("WARNING", "fedtorch"):
        run = Watched(make_runner(toy_config(tmp_path, algorithm, quiet)), monkeypatch)
    assert run.averages == run.served[:2]  # equal bits
    assert run.students == [[served] * 2 for served in run.served[:2]]
    assert "the consistency loss of all 2 clients is exactly 0" in caplog.text


def test_with_noise_no_warning_is_given(tmp_path: Path, caplog: Any) -> None:
    make_runner(toy_config(tmp_path, FedParsing(decoder=("w",)))).run()
    assert "consistency loss" not in caplog.text


def test_hydranet_is_the_server_alone_with_one_more_training_than_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Watched(make_runner(toy_config(tmp_path, FedParsing(group="hydranet"))), monkeypatch)
    w, expected = 0.0, []
    for _ in range(3):
        for _ in range(2):
            w -= 0.25 * (w - 2.0)
        expected.append(w)
    assert run.served == pytest.approx(expected, **close)
    assert run.students == [[], []] and run.averages == [] and run.result.rounds == 2


def test_what_is_evaluated_is_what_the_server_sends_next(tmp_path: Path) -> None:
    evaluation = EvalConfig(every=1, on_start=True)
    runner = make_runner(toy_config(tmp_path, FedParsing(group="hydranet"), eval=evaluation))
    result = runner.run()
    assert result.best_round == 2
    assert result.scores["part0"]["nearness"][0] == pytest.approx(-(2.0 * 0.75**6), **close)


def test_a_student_may_start_from_its_own_last_decoder_or_from_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, everyone = replace(TOY, start=5.0), ClientsConfig()
    config = {"client": ClientConfig(optimizer="sgd", lr=0.0, batch_size=10), "clients": everyone}
    initial = FedParsing(student=Student(init="initial"), decoder=("w",))
    run = Watched(make_runner(toy_config(tmp_path / "a", initial, task, **config)), monkeypatch)
    assert run.students == [[5.0] * 3] * 2  # a rate of 0 leaves the students where they start
    persistent = FedParsing(student=Student(init="persistent"), decoder=("w",))
    run = Watched(make_runner(toy_config(tmp_path / "b", persistent, task, **config)), monkeypatch)
    assert run.students == [[run.served[0]] * 3] * 2  # round 1 goes on from round 0, not from w_s^1
    assert run.served[0] != run.served[1]


def test_a_decoder_only_client_leaves_the_encoder_alone() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(2, 2), nn.Linear(2, 1)

    engine = engine_of(Two())
    engine.module.decoder(engine.module.encoder(torch.ones(1, 2))).backward()
    hook = FedParsing(train_encoder=False)._hook(["decoder.weight", "decoder.bias"])
    assert hook is not None and FedParsing()._hook(["decoder.weight"]) is None
    hook(engine)
    assert [name for name, p in zip(engine.trained_names, engine.trained) if p.grad is not None] == [
        "decoder.weight",
        "decoder.bias",
    ]


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="teacher is set but group is hydranet, which does not use it"):
        FedParsing(group="hydranet", teacher=Teacher(lam=0.5))
    with pytest.raises(ConfigError, match="masked_words is set but group is fedparsing, which does not use it"):
        FedParsing(group="fedparsing", masked_words=MaskedWords(share=0.5))
    with pytest.raises(ConfigError, match="masked is 0.9 and random 0.2; together they may be at most 1"):
        MaskedWords(masked=0.9, random=0.2)
    with pytest.raises(ConfigError, match="consistency.reduce is mean_classes but consistency.type is hard"):
        Consistency(type="hard", reduce="mean_classes")
    with pytest.raises(ConfigError, match="client.steps is 5 but fedparsing counts in epochs"):
        steps = ClientConfig(optimizer="sgd", steps=5)
        make_runner(toy_config(tmp_path, FedParsing(decoder=("w",)), client=steps, per_client={}))
    with pytest.raises(ConfigError, match="group is hydranet_mlm, which needs a head; set task.masked_words to true"):
        make_runner(toy_config(tmp_path, FedParsing(group="hydranet_mlm")))
    with pytest.raises(ConfigError, match="algorithm.decoder is head.*, which matches none of the 1 shared parameters"):
        make_runner(toy_config(tmp_path, FedParsing(decoder=("head*",)))).run()
    with pytest.raises(ConfigError, match="has no labelled data for the server"):
        from toy import Quadratic

        make_runner(make_config(tmp_path, Quadratic(clients={"a": (1.0, 1.0, 2)}), FedParsing()))
    with pytest.raises(ConfigError, match="clients.per_round is 4 but the task `` has 3 clients"):
        make_runner(toy_config(tmp_path, FedParsing(), clients=ClientsConfig(per_round=4)))
    with pytest.raises(ConfigError, match="per_client.server is set but the task `` has no client `server`"):
        from toy import Quadratic

        server = {SERVER: {"lr": 0.1}}
        make_runner(make_config(tmp_path, Quadratic(clients={"a": (1.0, 1.0, 2)}), FedAvg(), per_client=server))


@pytest.mark.parametrize(
    ("unit", "seen", "is_whole"),
    [("question", "pair", True), ("row", "pair", False), ("question", "question_only", False)],
)
def test_hard_answers_need_all_columns_of_a_question_together(unit: str, seen: str, is_whole: bool) -> None:
    class Columns(Toy):
        batch_unit, client_input = unit, seen

    task, hard = Columns(), FedParsing(consistency=Consistency(type="hard"))
    hp = ClientConfig(epochs=3)
    FedParsing().check(hp, task)
    if is_whole:
        hard.check(hp, task)
        return
    with pytest.raises(ConfigError, match="is hard, which needs all columns of a question together"):
        hard.check(hp, task)
