"""The user's PyTorch model: load, trace, splice, verify. Runs as a process of its own that holds no key and no seed."""
