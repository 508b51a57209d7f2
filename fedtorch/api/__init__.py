"""What Python code calls in place of the commands: `run`, `open_run`, `partition`; all of it is in `fedtorch` too."""
