"""Stands in for what you have: a small decoder with its tokenizer in `model/`, and rows of three clinics."""

import json
import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

draw = random.Random(0)
DRUGS = {"north": ("aspirin", "heparin"), "south": ("insulin", "metformin"), "west": ("ibuprofen", "codeine")}
rows = []
for number in range(120):
    clinic = list(DRUGS)[number % 3]
    drug, times = draw.choice(DRUGS[clinic]), draw.choice(["once", "twice"])
    rows.append(
        {"prompt": f"patient {number} takes {drug} how often", "completion": f" {times} a day", "clinic": clinic}
    )
with open("rows.jsonl", "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)

words = sorted({word for row in rows for word in (row["prompt"] + row["completion"]).split()})
entries = {word: number for number, word in enumerate(["<pad>", "</s>", *words])}
tokenizer = Tokenizer(models.WordLevel(entries, unk_token="<pad>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>").save_pretrained("model")
torch.manual_seed(0)
config = GPT2Config(
    vocab_size=len(entries), n_embd=32, n_layer=2, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=1
)
GPT2LMHeadModel(config).save_pretrained("model")
print(f"{len(rows)} rows of {len(DRUGS)} clinics, a vocabulary of {len(entries)}")
