"""Local training: the engine, its optimiser, and the only training loop."""
