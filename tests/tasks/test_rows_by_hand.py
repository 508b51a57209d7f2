"""What tasks make of a row's columns, and the smallest of what they compute of it, by hand."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from own_rows import ONE, own, write_rows

from fedtorch.core.errors import DataError
from fedtorch.core.model_folder import ADAPTED
from fedtorch.data.hydranet import Gold, HydraNetRow, Question
from fedtorch.models.networks.hydranet import Query
from fedtorch.tasks import wikisql_measures
from fedtorch.tasks.conversations import Conversations, Unanswered, Unchosen
from fedtorch.tasks.labelled_texts import LabelledTexts
from fedtorch.tasks.messages import listed, texts_of, tools_of
from fedtorch.tasks.new_rows import BLOCK, NewPrompts, NewRow, NewTexts, all_usable, new_rows, text_form_of
from fedtorch.tasks.own import OwnTask
from fedtorch.tasks.own_usage import usage
from fedtorch.tasks.qa_examples import Question as Candidates
from fedtorch.tasks.qa_examples import Triple, labelled, triples_of
from fedtorch.tasks.tagged_words import TaggedWords, UntaggedWords, words_of
from fedtorch.tasks.word_tokens import Example, first_pieces, spans_in_text, tags_of_words
from fedtorch.text.templates import check_strings, filled, template_columns


def test_labelled_texts_keep_a_second_text_and_only_one_that_is_there() -> None:
    form = LabelledTexts("single_label", ())
    alone, both = {"text": "a", "label": "x"}, {"text": "a", "text_pair": "b", "label": 3}
    assert form.convert({**alone, "text_pair": None}) == form.convert(alone) == alone
    assert form.convert(both) == {"text": "a", "text_pair": "b", "label": "3"}
    assert form.texts(alone) == ["a"] and form.texts(both) == ["a", "b"]


def test_labels_are_words_lists_of_them_or_numbers_as_the_problem_says() -> None:
    several, number = LabelledTexts("multi_label", ("a", "b")), LabelledTexts("regression", ())
    assert several.convert({"text": "t", "label": ["b", "a", "b"]})["label"] == ["a", "b"]
    assert number.convert({"text": "t", "label": "2"})["label"] == 2.0
    with pytest.raises(ValueError, match="the label is a str, expected a list of labels"):
        several.convert({"text": "t", "label": "a"})
    with pytest.raises(ValueError, match="the label is a list; set task.problem to multi_label"):
        LabelledTexts("single_label", ()).convert({"text": "t", "label": ["a"]})
    with pytest.raises(ValueError, match="the label 'c' is none of task.data.labels: a, b"):
        several.convert({"text": "t", "label": ["c"]})
    one = LabelledTexts("single_label", ())
    for given, label in ((True, "true"), (False, "false"), ("True", "True"), (2.0, "2"), (2, "2"), ("2.0", "2.0")):
        assert one.convert({"text": "t", "label": given})["label"] == label
    with pytest.raises(ValueError, match="the label is a float, expected a string or a whole number"):
        one.convert({"text": "t", "label": 1.5})


def test_a_number_may_be_a_text_and_a_comma_is_read_where_it_is_asked_for() -> None:
    point, comma = LabelledTexts("regression", ()), LabelledTexts("regression", (), decimal=",")
    assert point.convert({"text": "t", "label": "-2.5"})["label"] == -2.5
    assert comma.convert({"text": "t", "label": "-2,5"})["label"] == -2.5
    for label, why in (
        ("2,5", 'the label is a str, a number with a comma; set task.data.decimal to ",", or write a point'),
        ("a,5", "the label is a str, expected a finite number, as for every regression$"),
        (True, "the label is a bool, expected a finite number, as for every regression$"),
        (float("inf"), "the label is a float, expected a finite number"),
    ):
        with pytest.raises(ValueError, match=why):
            point.convert({"text": "t", "label": label})
    with pytest.raises(
        ValueError, match="as for every regression with a comma before its decimals, as task.data.decimal says$"
    ):
        comma.convert({"text": "t", "label": "2.5"})


def test_texts_of_other_scripts_stay_as_they_are_where_tools_are_written_as_json() -> None:
    call = {"function": {"name": "größe", "arguments": {"von": "Köln"}}}
    said = list(texts_of([{"role": "assistant", "content": None, "tool_calls": [call]}], [{"name": "größe"}]))
    assert said == ["", json.dumps([call], ensure_ascii=False), '[{"name": "größe"}]']


def test_all_calls_are_mappings_and_tools_a_list() -> None:
    mixed = [{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}, "g"]}]
    with pytest.raises(ValueError, match="message 1 has tool_calls that are no list of mappings"):
        listed(mixed)
    assert listed([{"role": "user", "content": "a", "audio": None}]) == [{"role": "user", "content": "a"}]
    assert tools_of([{"name": "f"}]) == tools_of('[{"name": "f"}]') == [{"name": "f"}]
    with pytest.raises(ValueError, match="`tools` is a dict, expected a list of tools, or JSON of one"):
        tools_of({"name": "f"})
    with pytest.raises(ValueError, match="`tools` is a text that is no JSON"):
        tools_of("f")


def test_the_right_choice_is_given_by_its_text_or_by_its_number_from_0() -> None:
    form = Conversations(("prompt", "choices", "completion"), None)
    row = {"prompt": "p", "choices": ["yes", "no"]}
    for right, text in ((0, "yes"), (1, "no"), ("no", "no")):
        found = form.convert({**row, "completion": right})
        assert found == {"prompt": "p", "completion": text, "choices": ["yes", "no"]}
    assert sorted(form.texts(found)) == ["no", "p", "yes"]  # each text once
    for wrong in (-1, 2):
        with pytest.raises(ValueError, match=f"the completion is choice {wrong} of 2; they are counted from 0"):
            form.convert({**row, "completion": wrong})
    for wrong in (True, "maybe"):
        with pytest.raises(ValueError, match="the completion is none of the 2 choices"):
            form.convert({**row, "completion": wrong})


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        ("yes", "`choices` is a str, expected a list of texts"),
        (["yes", ""], "choice 2 is empty, expected a text"),
        (["yes", 3], "choice 2 is a int, expected a text"),
        (["yes", "yes"], "there are 2 choices, 1 of them different, expected two or more"),
        (["yes"], "there are 1 choices, 1 of them different"),
    ],
)
def test_choices_are_two_texts_or_more_all_different(choices: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Unchosen(("prompt", "choices"), None).convert({"prompt": "p", "choices": choices})


def test_a_text_alone_is_learned_whole_and_a_template_is_filled() -> None:
    assert Conversations(("text",), None).convert({"text": "a"}) == {"text": "a"}
    form = Conversations(("city", "completion"), "Weather in {city}? ")
    assert form.convert({"city": "Rome", "completion": "sun"}) == {
        "prompt": "Weather in Rome? ",
        "completion": "sun",
    }
    assert (
        filled(None, {"a": "x {b}", "b": "y"}, "a") == "x {b}" and filled("{b}{a}", {"a": "1", "b": "2"}, "a") == "21"
    )
    check_strings({"a": "x"})
    with pytest.raises(ValueError, match="`a` is a int, expected a string"):
        check_strings({"a": 1})


def test_what_the_assistant_said_last_is_no_part_of_what_is_asked() -> None:
    asked, said = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    assert Unanswered().convert({"messages": [asked, said, asked, said, said]}) == {
        "conversation": [asked, said, asked]
    }
    with pytest.raises(ValueError, match="no message is anybody's but the assistant's"):
        Unanswered().convert({"messages": [said]})
    with pytest.raises(ValueError, match="no message is the assistant's, so there is nothing to learn"):
        Conversations(("messages",), None).convert({"messages": [asked]})


def test_new_rows_are_texts_without_those_that_are_not_there() -> None:
    assert NewTexts(("text",), ("text_pair",)).convert({"text": "a", "text_pair": None}) == {"text": "a"}
    with pytest.raises(ValueError, match="the text is a int, expected a string"):
        NewTexts().convert({"text": 1})
    assert NewPrompts(("city", "day"), None).convert({"city": "Rome", "day": "today"}) == {"source": "Rome"}


def test_new_rows_come_in_their_order_in_blocks_with_their_places(tmp_path: Path) -> None:
    rows = [{"said": f"text {i}", "label": i, "home": "x"} for i in range(BLOCK + 1)]
    source = write_rows(tmp_path / "rows.jsonl", rows)
    data = own(source, clients=ONE, columns={"text": "said", "label": "label"})
    blocks = list(new_rows(source, data, NewTexts()))
    assert [len(block) for block in blocks] == [1000, 1]  # so many are in memory together
    usable = all_usable([row for block in blocks for row in block])
    assert [row["text"] for row in usable] == [row["said"] for row in rows]
    assert blocks[1] == [NewRow(1001, {"text": "text 1000", "where": f"{source}:1001"})]
    write_rows(Path(source), [{"said": "a"}, {"said": 2}])
    (found,) = new_rows(source, data, NewTexts())
    why = f"{source}:2: the text is a int, expected a string; correct the row"
    assert found == [NewRow(1, {"text": "a", "where": f"{source}:1"}), NewRow(2, None, why)]
    with pytest.raises(DataError, match=f"^{re.escape(why)}$"):
        all_usable(found)


def test_new_rows_have_the_encoding_of_training_where_they_are_no_utf8(tmp_path: Path) -> None:
    for name, text in (("one", "größe"), ("two", "weite"), ("three", "länge")):
        (tmp_path / f"{name}.csv").write_bytes(f"text;x\n{text};1\n".encode("cp1252" if name == "three" else "utf-8"))
    western = own("rows.csv", encoding="cp1252", separator=";")
    found = {name: text_form_of(str(tmp_path / f"{name}.csv"), western) for name in ("one", "two", "three")}
    assert {name: form.encoding for name, form in found.items()} == {"one": "utf-8", "two": "utf-8", "three": "cp1252"}
    assert text_form_of(str(tmp_path / "*.csv"), western).encoding == "cp1252"  # one of them is none
    assert text_form_of(str(tmp_path / "three.csv"), own("rows.csv")).encoding == "utf-8"
    assert not any(form.separator for form in found.values())


def test_columns_of_a_template_stand_once_in_its_order() -> None:
    assert template_columns("{b} and {a}: {b}.") == ["b", "a"]
    assert template_columns(None) == template_columns("") == template_columns("none {{a}}") == []


def test_words_are_found_in_a_joined_text_and_tags_are_iob2() -> None:
    form = TaggedWords("words", ("PER",))
    row = form.convert({"tokens": ["anna", "b", "went"], "tags": ["B-PER", "I-PER", "O"]})
    assert row == {"text": "anna b went", "starts": [0, 5, 7], "ends": [4, 6, 11], "tags": ["B-PER", "I-PER", "O"]}
    for tags, why in (
        (["O", "I-PER"], "tag 2 is 'I-PER' after 'O'"),
        (["B-", "O"], "tag 1 is 'B-', expected O, B-KIND or I-KIND"),
        (["X-PER", "O"], "tag 1 is 'X-PER', expected O"),
        ([1, "O"], "tag 1 is a int, expected a string such as O or B-PER"),
        (["B-LOC", "O"], "the label 'LOC' is none of task.data.labels: PER"),
    ):
        with pytest.raises(ValueError, match=why):
            form.convert({"tokens": ["a", "b"], "tags": tags})
    assert form.required == ("tokens", "tags") and TaggedWords("spans", ()).required == ("text", "spans")
    untagged = UntaggedWords("words")
    assert untagged.required == ("tokens",) and untagged.convert({"tokens": ["a", "b"]})["tags"] == ["O", "O"]


def test_spans_reach_from_a_words_border_to_a_words_border() -> None:
    form = TaggedWords("spans", ())

    def tags(*places: tuple[int, int]) -> list[str]:
        spans = [{"start": start, "end": end, "label": "PER"} for start, end in places]
        found: list[str] = form.convert({"text": "anna b went", "spans": spans})["tags"]
        return found

    assert tags((0, 6)) == ["B-PER", "I-PER", "O"]
    assert tags((7, 11), (0, 4)) == ["B-PER", "O", "B-PER"]  # up to the very end, in any order
    for places, why in (
        (((0, 5), (4, 6)), "span 2 .characters 4 to 6. overlaps another one"),
        (((1, 4),), "begins or ends within a word"),
        (((0, 3),), "begins or ends within a word"),
        (((4, 5),), "span 1 .characters 4 to 5. has no word in it"),
        (((0, 12),), "span 1 is characters 0 to 12 of a text of 11"),
        (((4, 4),), "span 1 is characters 4 to 4"),
        (((-1, 4),), "span 1 is characters -1 to 4"),
    ):
        with pytest.raises(ValueError, match=why):
            tags(*places)


def test_words_of_scripts_with_and_without_blanks() -> None:
    def words(text: str) -> list[str]:
        return [text[start:end] for start, end in words_of(text)]

    assert words("ab12, c") == ["ab", "12", ",", "c"]
    assert words("größe12 äh!!") == ["größe", "12", "äh", "!", "!"]
    assert words("北京ab") == ["北", "京", "ab"]


def test_pieces_of_words_by_hand() -> None:
    offsets = [(0, 0), (0, 2), (2, 4), (5, 6), (0, 0)]  # of [CLS] an na b [SEP], for the words anna, b and one cut away
    assert first_pieces([(0, 4), (5, 6), (7, 9)], offsets) == [1, 3, -1]
    assert first_pieces([(0, 1), (1, 2)], [(0, 2)]) == [0, 0]  # words that share a token
    assert first_pieces([(0, 2), (2, 3)], [(0, 1), (3, 4)]) == [0, -1]  # a token that begins where the word ends
    example = Example([7, 8, 9], [1, 1, -1, 2], [3, 4, 5, 6])
    assert example.labelled == [(1, 3), (2, 6)] and example.windows == [[7, 8, 9]]
    assert Example([7, 8], [0, 1], [3, 4]).labelled == [(0, 3), (1, 4)]
    # a second word in a token goes on with its span: I- of the kind has the number after B-
    assert tags_of_words([0, 0, 1, -1], [1, 4]) == [1, 2, 4, 0]
    row = {"starts": [0, 5, 7], "ends": [4, 6, 11]}
    assert spans_in_text(row, ["B-PER", "I-PER", "O"]) == [{"start": 0, "end": 6, "label": "PER"}]


def test_answers_are_paired_by_their_labels() -> None:
    question = Candidates([1], [[2], [3], [4]], [0, 1, 0], ["a", "b", "c"])
    assert triples_of(question, sampled=False) == [Triple([1], [3], [[2]]), Triple([1], [3], [[4]])]
    assert triples_of(question, sampled=True) == [Triple([1], [3], [[2], [4]])]
    assert labelled(question) == [([1], [2], 0), ([1], [3], 1), ([1], [4], 0)]


@dataclass(frozen=True)
class Source:
    """What a model card looks at."""

    random: str | None = None
    path: str | None = None
    adapter: Any = None
    quantize: Any = None


@pytest.mark.parametrize(
    ("head", "pipeline", "line", "labels"),
    [
        (
            "SequenceClassification",
            "text-classification",
            'classify = pipeline("text-classification", model="FOLDER")',
            True,
        ),
        ("CausalLM", "text-generation", 'model = AutoModelForCausalLM.from_pretrained("FOLDER")', False),
        ("Seq2SeqLM", "", 'model = AutoModelForSeq2SeqLM.from_pretrained("FOLDER")', False),
    ],
)
def test_a_model_card_has_the_lines_that_load_the_model(head: Any, pipeline: str, line: str, labels: bool) -> None:
    source: Any = Source(path="models/tiny")
    found = usage(head, source)
    assert found["pipeline"] == pipeline and line in found["code"] and found["start"] == "`tiny`"
    with_adapter: Any = Source(random="bert", adapter="lora")
    found = usage(head, with_adapter)
    assert found["pipeline"] == "" and found["start"] == "random weights, with an adapter"
    base = f'model = AutoModelFor{head}.from_pretrained("FOLDER"'
    assert (f"{base}, config=config, ignore_mismatched_sizes=True)\n" in found["code"]) is labels
    assert (f"{base})  # finds base and adapter, by peft\n" in found["code"]) is not labels
    assert found["code"].count("by peft") == 1
    assert (f'AutoConfig.from_pretrained("FOLDER/{ADAPTED}")' in found["code"]) is labels


def test_measures_of_a_query_by_hand(tmp_path: Path) -> None:
    gold = Gold(0, 0, 1, {1: (0, (3, 3))}, ((1, 0, "Red"),))
    question = Question([HydraNetRow([0] * 7, 3, 6)] * 2, "red or blue", [0, 1, 2], [0, 4, 7], gold)
    right, wrong = Query(0, 0, (1,), {1: (0, (3, 3))}), Query(0, 0, (1,), {1: (1, (3, 3))})
    assert wikisql_measures.measures(gold, right)["overall"] == 1
    assert wikisql_measures.logical_form(question, right) == 1
    assert wikisql_measures.logical_form(question, wrong) == 0  # another operator
    found = wikisql_measures.scores([question, question], [right, wrong], None)
    assert found["overall"] == (1.0, 2) and found["sel"] == (2.0, 2) and found["logical_form"] == (1.0, 2)
    assert "execution" not in found
    # a question that stands for no table is asked for no answer
    assert wikisql_measures.scores([question], [right], tmp_path)["execution"] == (0.0, 0)


def test_rows_without_a_token_to_learn_count_none() -> None:
    def tokens(*counts: int | None, **keys: str) -> dict[str, float]:
        task: Any = SimpleNamespace(supervised=lambda count: count, client_weight="rows", **keys)
        return OwnTask.counts(task, counts)

    assert (tokens(3, 0, 4), tokens(3, None), tokens()) == ({"tokens": 7.0}, {}, {})
