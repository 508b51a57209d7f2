"""Records, curves, console."""
