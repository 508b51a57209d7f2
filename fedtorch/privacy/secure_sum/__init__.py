"""A sum of which the server sees nothing but the sum: parties that mask, and what removes the masks (no transport)."""
