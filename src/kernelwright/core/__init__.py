"""The vocabulary every room shares: nouns, ports and pure functions. No I/O, no torch."""
