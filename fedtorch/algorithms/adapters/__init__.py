"""Rules for adapters of low rank: what of the factors is trained, sent and combined."""
