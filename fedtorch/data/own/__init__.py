"""Data of one's own: files with rows of text, who owns which row, and the prepared folder that comes of it."""
