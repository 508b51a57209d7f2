"""From a config to everything a run needs."""
