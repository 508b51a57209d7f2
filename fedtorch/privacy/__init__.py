"""Client-level differential privacy: clipping, noise from a key, the ledger of releases, what they add up to."""
