"""Drawer: one kind of author per file; the file's name is its registration."""
