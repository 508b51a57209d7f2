"""Data, model, loss, prediction and scoring of each problem. Names here are the values of `task.name` in YAML."""

TASKS = {
    "text2sql": "fedtorch.tasks.text2sql:Text2SQL",
    "fewshot": "fedtorch.tasks.fewshot:FewShotTasks",
    "qa": "fedtorch.tasks.qa:QA",
    "qa_re2": "fedtorch.tasks.qa:QARe2",
    "qa_esim": "fedtorch.tasks.qa:QAEsim",
    "wikisql": "fedtorch.tasks.wikisql:WikiSQL",
    "text_classification": "fedtorch.tasks.text_classification:TextClassification",
    "seq2seq": "fedtorch.tasks.seq2seq:Seq2Seq",
    "causal_lm": "fedtorch.tasks.causal_lm:CausalLM",
    "token_classification": "fedtorch.tasks.token_classification:TokenClassification",
    "script": "fedtorch.tasks.script:Script",
    "preference": "fedtorch.tasks.preference:Preference",
    "reward": "fedtorch.tasks.reward:Reward",
    "dialog": "fedtorch.tasks.dialog:Dialog",
}
