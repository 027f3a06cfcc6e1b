"""Drawer: one search per file; the file's name is its registration."""
