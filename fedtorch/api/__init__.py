"""Calls for Python code in place of the commands: `run`, `open_run`, `partition`, `audit_run`; all in `fedtorch`."""
