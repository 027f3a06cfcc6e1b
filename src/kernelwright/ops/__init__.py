"""Drawer: one kernel type per file; the file's name is its registration."""
