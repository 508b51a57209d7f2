"""Trainers of others in place of the package's own loop: a function, transformers' Trainer, TRL's."""

TRAINERS = {
    "transformers": "fedtorch.trainers.hugging_face:Transformers",
    "trl.SFT": "fedtorch.trainers.trl:SFT",
    "trl.DPO": "fedtorch.trainers.trl:DPO",
    "trl.KTO": "fedtorch.trainers.trl:KTO",
    "script": "fedtorch.trainers.script:Script",
    "trl.Reward": "fedtorch.trainers.trl:Reward",
}
"""Name in `client.trainer` -> the class; anything else is `module:function`, of the user's."""
