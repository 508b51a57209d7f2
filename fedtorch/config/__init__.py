"""Configuration: dataclasses, YAML, checks."""
