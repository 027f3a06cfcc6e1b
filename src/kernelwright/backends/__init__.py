"""Drawer: one language per file; the file's name is its registration."""
