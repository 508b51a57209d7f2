"""Fine-tuning as in alone.py, by a function: model, rows and seed come from the run."""

from datasets import Dataset
from trl import SFTConfig, SFTTrainer


def train(model, rows, context):
    """Train `model` in place on `rows`, which are dictionaries of columns."""
    args = SFTConfig(
        output_dir="out",
        max_steps=context.steps,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        max_length=32,
        bf16=False,
        use_cpu=context.device.type == "cpu",
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        seed=context.seed % 2**32,
        data_seed=context.seed % 2**32,
    )
    trainer = SFTTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list([{name: row[name] for name in ("prompt", "completion")} for row in rows]),
        processing_class=context.tokenizer,
    )
    return {"loss": trainer.train().training_loss}
