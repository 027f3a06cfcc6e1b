"""Drawer: one mechanical rewrite per file, on parsed code; the file's name is its registration."""
