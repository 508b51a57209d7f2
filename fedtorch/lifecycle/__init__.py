"""How a process starts to stop, and ends."""
