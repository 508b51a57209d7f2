"""Rounds that wait for nobody: the plan of who trains when, and how buffers of updates become versions."""
