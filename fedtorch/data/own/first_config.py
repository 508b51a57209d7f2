"""The config that is written from a guess: commented, and of a size that trains in less than a minute."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from fedtorch.data.own.guess import Guess

RANDOM = {
    "text_classification": "{random: bert, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, "
    "intermediate_size: 128}",
    "seq2seq": "{random: t5, d_model: 64, d_kv: 16, d_ff: 128, num_layers: 2, num_heads: 4}",
    "causal_lm": "{random: gpt2, n_embd: 64, n_layer: 2, n_head: 4}",
}
RANDOM["token_classification"] = RANDOM["text_classification"]
# Roles and contents stand between end tokens, so that no token reaches over the border of an answer.
_CHAT = (
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


def config_text(
    found: Guess,
    source: str | Sequence[str],
    *,
    model: str | None,
    positions: int | None,
    splits: dict[str, str],
    template: Path,
) -> str:
    """The YAML. positions: that the model has; splits: dev or test -> its file; template: see `chat_template`."""
    own = f"{{path: {quoted(model)}}}" if model else RANDOM[found.task]
    lines = [
        "# A first config; every key can be changed, `fedtorch run FILE --dry-run=config` shows all of them.",
        "task:",
        f"  name: {found.task}",
        *([] if found.problem == "single_label" else [f"  problem: {found.problem}"]),
        *(f"  {key}: {value}" for key, value in _rows_are(found, model, template)),
        *([] if model else ["  # small, and from random weights; {path: FOLDER} takes a pretrained one"]),
        f"  model: {own}",
        "  data:",
        f"    source: {_sources(source)} # a relative path counts from where the run is started",
        f"    columns: {{{', '.join(f'{role}: {quoted(column)}' for role, column in found.roles.items())}}}",
        *_labels(found),
        *_clients(found),
        *_splits(found, splits),
        *([f"    id: {quoted(found.id)} # tells rows apart"] if found.id else []),
        f"  max_length: {_length(found, model, positions)} # tokens; longer texts are cut",
        *_training(found, model),
    ]
    return "\n".join(lines) + "\n"


def chat_template(found: Guess, model: str | None) -> str:
    """The template to be written beside the config, where rows are conversations and a new tokenizer has none."""
    return _CHAT if "messages" in found.roles and not model else ""


def quoted(text: str | None) -> str:
    """A text as YAML reads it back, in quotes only where it needs them."""
    text = text or ""
    is_plain = _PLAIN.fullmatch(text) and text.casefold() not in _TAKEN
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _sources(source: str | Sequence[str]) -> str:
    if isinstance(source, str):
        return quoted(source)
    return quoted(source[0]) if len(source) == 1 else f"[{', '.join(map(quoted, source))}]"


def _labels(found: Guess) -> list[str]:
    if found.task not in ("text_classification", "token_classification") or not found.labels:
        return []
    listed = ", ".join(map(json.dumps, found.labels[:20])) + (", ..." if len(found.labels) > 20 else "")
    return [f"    # labels: [{listed}] # seen; declared here, any other one is an error"]


def _rows_are(found: Guess, model: str | None, file: Path) -> list[tuple[str, str]]:
    """Keys of the tasks with texts for answers."""
    if found.task == "seq2seq":
        tokens = _rounded(found.answer_tokens)
        return [("max_target_length", str(tokens)), ("generate", f"{{max_new_tokens: {tokens}}}")]
    if "choices" in found.roles:
        return [("rows_are", "choices"), ("template", '"{prompt} " # and the choice after it')]
    if found.task != "causal_lm" or "prompt" in found.roles:
        return []
    kind = next(iter(found.roles))
    template = [("chat_template", f"{quoted(str(file))} # the tokenizer is a new one and has none")]
    return [("rows_are", kind), *(template if chat_template(found, model) else [])]


def _clients(found: Guess) -> list[str]:
    if found.by is not None:
        what = "one client for each file or sub-folder" if found.by == "file" else f"{found.clients} clients"
        return [f"    clients: {{by: {quoted(found.by)}}} # {what}"]
    by_label = found.task == "text_classification" and found.problem == "single_label" and found.iid > 1
    other = f"; uneven: {{dirichlet: {{alpha: 0.5, number: {found.iid}}}}}" if by_label else ""
    return [f"    clients: {{iid: {found.iid}}} # shuffled and dealt{other}"]


def _splits(found: Guess, splits: dict[str, str]) -> list[str]:
    if found.split:
        return [f"    splits: {{column: {quoted(found.split)}}}"]
    if found.splits:
        return [f"    # splits: as the data set comes, {', '.join(found.splits)}"]
    if splits:
        given = {name: quoted(splits[name]) if name in splits else "0.1" for name in ("dev", "test")}
        return [f"    splits: {{dev: {given['dev']}, test: {given['test']}}}"]
    return ["    splits: {dev: 0.1, test: 0.1} # of every client's rows: dev chooses the best round, test scores it"]


def _length(found: Guess, model: str | None, positions: int | None) -> int:
    wanted = max(32, _rounded(found.tokens))
    return min(wanted, 512 if model else 256, positions or wanted)


def _rounded(tokens: int) -> int:
    return -(-tokens // 16) * 16


def _training(found: Guess, model: str | None) -> list[str]:
    taking_part = min(found.clients, 10) if found.clients > 20 else found.clients
    steps = max(1, found.rows * taking_part // (max(1, found.clients) * _BATCH))
    rounds = min(10, max(2, _STEPS // (2 * steps)))
    lines = [f"rounds: {rounds}"]
    if found.clients > 20:
        lines.append(f"clients: {{per_round: {taking_part}}} # of {found.clients}")
    rate, what = ("5.0e-5", "for a pretrained model") if model else ("1.0e-3", "for random weights")
    lines += [
        f"client: {{optimizer: adamw, lr: {rate}, batch_size: {_BATCH}, epochs: 2}} # lr {what}",
        "algorithm: {name: fedavg}",
        "# compare: [start, local, centralized] # beside it: untrained, every client alone, all rows together",
    ]
    return lines
