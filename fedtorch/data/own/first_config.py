"""The config that is written from a guess: commented, and of a size that trains in less than a minute."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtorch.data.own.guessed import Counted, Guess
from fedtorch.data.own.model_kind import ModelKind
from fedtorch.data.own.text_form import TextForm

RANDOM = {
    "text_classification": "{random: bert, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, "
    "intermediate_size: 128}",
    "seq2seq": "{random: t5, d_model: 64, d_kv: 16, d_ff: 128, num_layers: 2, num_heads: 4}",
    "causal_lm": "{random: gpt2, n_embd: 64, n_layer: 2, n_head: 4}",
}
RANDOM["preference"] = RANDOM["causal_lm"]
RANDOM["token_classification"] = RANDOM["text_classification"]
# Roles and contents stand between end tokens, so that no token reaches over the border of an answer.
CHAT = (
    "{% if tools %}tools{{ eos_token }}{{ tools | tojson }}{{ eos_token }}{% endif %}"
    "{% for message in messages %}{{ message['role'] }}{{ eos_token }}"
    "{% if message['reasoning_content'] %}{{ message['reasoning_content'] }}{{ eos_token }}{% endif %}"
    "{{ message['content'] or '' }}"
    "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}{{ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant{{ eos_token }}{% endif %}"
)
_PLAIN = re.compile(r"[A-Za-z_][\w./*-]*")
_TAKEN = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_STEPS = 400  # of all clients and rounds together, about what two cores do in half a minute with the sizes above
_BATCH = 8
LABELLED = ("text_classification", "token_classification")
"""Tasks whose rows have labels, unless they are numbers."""
POSITIONS = 512
"""Tokens that a model has positions for where that is not known."""
CUT = 0.25
"""The part of a text beyond `max_length`, on average, from which on texts are read in windows."""


@dataclass(frozen=True)
class Settings:
    """Facts beside the guess that a config is written from."""

    source: str | list[str]
    """of the rows to train on"""
    model: str | None
    """folder or name; None: a small random one"""
    kind: ModelKind
    """what the model can do"""
    splits: Mapping[str, str]
    """dev or test -> its file"""
    template_file: Path
    """where a chat template is written if one is needed; see `chat_template`"""
    form: TextForm
    """of text files"""
    skip_bad_rows: int = 0
    """rows that are left out"""
    counted: Counted = Counted("", "")
    """keys that silos' counts propose; none where nothing was counted"""

    def length(self, found: Guess) -> int:
        """`task.max_length`."""
        if self.counted.max_length is not None:
            return min(self.counted.max_length, self.kind.positions or POSITIONS)
        wanted = max(32, _rounded(found.tokens))
        return min(wanted, 512 if self.model else 256, self.kind.positions or wanted)

    def share_cut(self, found: Guess) -> float:
        """The part of a text beyond `max_length`, on average: a single long one among many does not count for them."""
        most = self.length(found)
        return sum(1 - most / size for size in found.lengths if size > most) / max(1, len(found.lengths))

    def windows(self, found: Guess) -> bool:
        """Would so much be cut that texts are better read in windows?"""
        return found.task in ("text_classification", "token_classification") and self.share_cut(found) > CUT

    def notes(self, found: Guess) -> list[tuple[str, str]]:
        """(what was decided, why), for people."""
        notes = self._of_counts(found)
        if self.windows(found):
            notes.append(("long: windows", f"on average {self.share_cut(found):.0%} of a text would be cut"))
        elif self.share_cut(found) > CUT:
            notes.append(("cut", f"on average {self.share_cut(found):.0%} of a text lies beyond task.max_length"))
        if self.form.separator:
            notes.append(("separator", f"{self.form.separator!r}"))
        if self.splits:
            notes.append(("splits", ", ".join(f"{name} is {file}" for name, file in sorted(self.splits.items()))))
        if self.form.format:
            notes.append(("format", "a word and its tag a line, sentences between empty lines"))
        if found.is_chat and self.model:
            notes += self._of_template()
        return notes

    def labels(self, found: Guess) -> tuple[str, ...]:
        """`task.data.labels` that silos counted by; empty: none are declared."""
        return self.counted.labels if found.task in LABELLED and found.problem != "regression" else ()

    def class_weights(self, found: Guess) -> Mapping[str, float]:
        """`task.class_weights`; empty: all rows count alike."""
        is_one = found.task == "text_classification" and found.problem == "single_label"
        return self.counted.class_weights if is_one else {}

    @property
    def tokenizer(self) -> str | None:
        """`task.tokenizer`; a pretrained model has its own."""
        return None if self.model else self.counted.tokenizer

    def _of_counts(self, found: Guess) -> list[tuple[str, str]]:
        used = {
            "labels": self.labels(found),
            "max_length": self.counted.max_length,
            "class_weights": self.class_weights(found),
            "tokenizer": self.tokenizer,
        }
        notes = []
        for key, reason in self.counted.why.items():
            is_used = used[key] or reason.startswith("not proposed")
            notes.append((key, f"{self.counted.run}: {reason}" if is_used else f"{self.counted.run}: not used here"))
        if self.counted.max_length is not None and self.length(found) < self.counted.max_length:
            notes.append(("max_length", f"{self.counted.max_length} are more than the model has positions for"))
        taken = self.tokenizer or self.model
        if self.counted.max_length is not None and taken != self.counted.counted_by:
            by = f"{taken or 'the tokenizer of this config'} may make more or fewer tokens of a text"
            notes.append(("max_length", f"counted with {self.counted.counted_by}; {by}"))
        return notes

    def _of_template(self) -> list[tuple[str, str]]:
        if self.kind.has_chat_template is None:
            why = "the model's is used; if it has none, the run says so: give one in task.chat_template"
            return [("chat template", why)]
        if self.kind.has_chat_template:
            return [("chat template", "the model's")]
        return [("chat template", f"the model has none, so a plain one is written to {self.template_file}")]


def config_text(found: Guess, settings: Settings) -> str:
    """The YAML."""
    model = settings.model
    own = f"{{path: {quoted(model)}}}" if model else RANDOM[found.task]
    beyond = f"longer texts are {'read in parts' if settings.windows(found) else 'cut'}"
    by = f", of silos' counts in {escaped(settings.counted.run)}" if settings.counted.max_length is not None else ""
    length = f"{settings.length(found)} # tokens{by}; {beyond}"
    lines = [
        "# A first config; every key can be changed, `fedtorch run FILE --dry-run=config` shows all of them.",
        "task:",
        f"  name: {found.task}",
        *([] if found.problem == "single_label" else [f"  problem: {found.problem}"]),
        *(f"  {key}: {value}" for key, value in _rows_are(found, settings)),
        *([] if model else [f"  # small, and from random weights; {_better(found)}"]),
        f"  model: {own}",
        "  data:",
        f"    source: {_sources(settings.source)} # a relative path counts from where the run is started",
        *_text_keys(found, settings.form),
        f"    columns: {{{', '.join(f'{role}: {quoted(column)}' for role, column in found.roles.items())}}}",
        *_labels(found, settings),
        *_clients(found),
        *_splits(found, settings.splits),
        *([f"    id: {quoted(found.id)} # tells rows apart"] if found.id else []),
        *([f"    skip_bad_rows: {settings.skip_bad_rows} # left out, see above; more are an error"]
          if settings.skip_bad_rows else []),
        f"  max_length: {length}",
        *_of_counts(found, settings),
        *_long(found, settings),
        *_training(found, settings),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def chat_template(found: Guess, settings: Settings) -> str:
    """The template to be written beside the config, where rows are conversations and the tokenizer has none."""
    has_one = settings.model is not None and settings.kind.has_chat_template is not False
    return CHAT if found.is_chat and not has_one else ""


def quoted(text: str | None) -> str:
    """A text as YAML reads it back, in quotes only where it needs them."""
    text = text or ""
    is_plain = _PLAIN.fullmatch(text) and text.casefold() not in _TAKEN
    return text if is_plain else escaped(json.dumps(text, ensure_ascii=False))


def escaped(text: str) -> str:
    """A text in one line: what cannot be printed, and would end a comment in YAML, as its number."""
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


def listed(labels: Sequence[str], most: int | None = None) -> str:
    """Labels as a list in one line of YAML. most: of more, so many and `...`, for a comment."""
    shown = [escaped(json.dumps(label, ensure_ascii=False)) for label in labels[:most]]
    return f"[{', '.join([*shown, *['...'] * (len(labels) > len(shown))])}]"


def _sources(source: str | Sequence[str]) -> str:
    if isinstance(source, str):
        return quoted(source)
    return quoted(source[0]) if len(source) == 1 else f"[{', '.join(map(quoted, source))}]"


def mapped(weights: Mapping[str, float]) -> str:
    """A mapping of labels to numbers in one line of YAML."""
    pairs = (f"{escaped(json.dumps(name, ensure_ascii=False))}: {value:g}" for name, value in weights.items())
    return f"{{{', '.join(pairs)}}}"


def _of_counts(found: Guess, settings: Settings) -> list[str]:
    """Keys beside the length that only counts over silos can tell."""
    run, weights, tokenizer = escaped(settings.counted.run), settings.class_weights(found), settings.tokenizer
    return [
        *([f"  class_weights: {mapped(weights)} # of silos' counts in {run}"] if weights else []),
        *([f"  tokenizer: {quoted(tokenizer)} # of words that silos counted"] if tokenizer else []),
    ]


def _labels(found: Guess, settings: Settings) -> list[str]:
    if counted := settings.labels(found):
        return [f"    labels: {listed(counted)} # of silos' counts in {escaped(settings.counted.run)}"]
    if found.task not in LABELLED or not found.labels:
        return []
    return [f"    # labels: {listed(found.labels, 20)} # seen; declared here, any other one is an error"]


def _text_keys(found: Guess, form: TextForm) -> list[str]:
    """How the files are written, where that is not what their endings say."""
    given = {
        "separator": form.separator,
        "encoding": None if form.is_utf8 else form.encoding,
        "format": form.format,
        "decimal": "," if found.decimal == "," else None,
    }
    return [f"    {key}: {json.dumps(value)}" for key, value in given.items() if value is not None]


def _long(found: Guess, settings: Settings) -> list[str]:
    """Say what becomes of texts beyond `max_length`."""
    if settings.windows(found):
        return ["  long: windows # of max_length tokens each; `truncate` reads the first one alone, and is faster"]
    if found.task in ("causal_lm", "preference") and "text" not in found.roles:
        return ["  truncate: left # so that answers, which stand at the end, are not what is cut"]
    return []


def _rows_are(found: Guess, settings: Settings) -> list[tuple[str, str]]:
    """Keys that say what rows are."""
    if found.task == "seq2seq":
        tokens = _rounded(found.answer_tokens)
        return [("max_target_length", str(tokens)), ("generate", f"{{max_new_tokens: {tokens}}}")]
    if found.task == "preference":
        kind = "kto # answers one by one, good or not" if "label" in found.roles else "dpo # or ipo"
        return [("kind", kind), *_template(found, settings)]
    if "spans" in found.roles:
        return [("annotation", "spans")]
    if found.scheme != "iob2":
        return [("scheme", found.scheme)]
    if "choices" in found.roles:
        return [("rows_are", "choices"), ("template", '"{prompt} " # and the choice after it')]
    if found.task != "causal_lm" or "prompt" in found.roles:
        return []
    return [("rows_are", next(iter(found.roles))), *_template(found, settings)]


def _template(found: Guess, settings: Settings) -> list[tuple[str, str]]:
    if not chat_template(found, settings):
        return []
    why = "the model has none" if settings.model else "the tokenizer is a new one and has none"
    return [("chat_template", f"{quoted(str(settings.template_file))} # {why}")]


def _clients(found: Guess) -> list[str]:
    if found.by is not None:
        what = "one client for each file or sub-folder" if found.by == "file" else f"{found.clients} clients"
        return [f"    clients: {{by: {quoted(found.by)}}} # {what}"]
    by_label = found.task == "text_classification" and found.problem == "single_label" and found.iid > 1
    other = f"; uneven: {{dirichlet: {{alpha: 0.5, number: {found.iid}}}}}" if by_label else ""
    return [f"    clients: {{iid: {found.iid}}} # shuffled and dealt{other}"]


def _splits(found: Guess, splits: Mapping[str, str]) -> list[str]:
    has_labels = found.task in ("text_classification", "token_classification") and found.problem != "regression"
    if found.split:
        return [f"    splits: {{column: {quoted(found.split)}}}"]
    if found.splits:
        return [f"    # splits: as the data set comes, {', '.join(found.splits)}"]
    given = {name: quoted(splits[name]) if name in splits else "0.1" for name in ("dev", "test")}
    if "0.1" in given.values() and has_labels:
        given["stratify"] = "true"
    written = ", ".join(f"{name}: {value}" for name, value in given.items())
    if splits:
        return [f"    splits: {{{written}}}"]
    return [
        "    # of every client's rows: dev chooses the best round, test scores it"
        + ("; stratify: of every label, as far as rows allow" if has_labels else ""),
        f"    splits: {{{written}}}",
    ]


def _better(found: Guess) -> str:
    if found.task == "preference":
        return "better {path: FOLDER, adapter: {kind: lora, r: 8}}, a model that answers already"
    return "{path: FOLDER} takes a pretrained one"


def _rounded(tokens: int) -> int:
    return -(-tokens // 16) * 16


def _training(found: Guess, settings: Settings) -> list[str]:
    model = settings.model
    taking_part = min(found.clients, 10) if found.clients > 20 else found.clients
    steps = max(1, found.rows * taking_part // (max(1, found.clients) * _BATCH))
    if settings.windows(found):  # of each text, a quarter of which lies in the one before
        steps *= max(1, 4 * sum(found.lengths) // (3 * settings.length(found) * len(found.lengths)))
    rounds = min(10, max(2, _STEPS // (2 * steps)))
    lines, is_kto = [f"rounds: {rounds}"], found.task == "preference" and "label" in found.roles
    if found.clients > 20:
        lines.append(f"clients: {{per_round: {taking_part}}} # of {found.clients}")
    rate, what = ("5.0e-5", "for a pretrained model") if model else ("1.0e-3", "for random weights")
    if model and found.task == "preference":
        rate, what = "5.0e-6", "for a model that answers already"
    lines += [
        f"client: {{optimizer: adamw, lr: {rate}, batch_size: {_BATCH}, epochs: 2}} # lr {what}",
        "algorithm: {name: fedavg}",
        *(["system: {oom_retry: false} # KTO compares within a batch, which must stay whole"] if is_kto else []),
        "# compare: [start, local, centralized] # beside it: untrained, every client alone, all rows together",
    ]
    return lines
