"""Fine-tuning as in alone.py, by a script that is a client: three lines more."""

from datasets import Dataset, disable_progress_bars
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

import fedtorch.client as fl

disable_progress_bars()
rows = fl.rows("rows.jsonl", by="clinic")
tokenizer = AutoTokenizer.from_pretrained("model")
model = fl.receive(AutoModelForCausalLM.from_pretrained("model", dtype="float32"))

args = SFTConfig(
    output_dir="out",
    max_steps=10,
    per_device_train_batch_size=8,
    learning_rate=1e-2,
    lr_scheduler_type="constant",
    max_length=32,
    bf16=False,
    use_cpu=True,
    save_strategy="no",
    report_to="none",
    logging_steps=1,
    seed=fl.seed() % 2**32,
    data_seed=fl.seed() % 2**32,
    disable_tqdm=True,
)
trainer = SFTTrainer(
    model=model,
    args=args,
    train_dataset=Dataset.from_list([{name: row[name] for name in ("prompt", "completion")} for row in rows]),
    processing_class=tokenizer,
)
result = trainer.train()
fl.send(model, {"loss": result.training_loss})
print(fl.name(), "loss", round(result.training_loss, 3))
