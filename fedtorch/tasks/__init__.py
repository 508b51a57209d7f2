"""Data, model, loss, prediction and scoring of each problem. Names here are the values of `task.name` in YAML."""

TASKS = {
    "text2sql": "fedtorch.tasks.text2sql:Text2SQL",
}
