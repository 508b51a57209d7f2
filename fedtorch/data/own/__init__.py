"""Data of one's own: rows from any file, and who owns each of them."""
