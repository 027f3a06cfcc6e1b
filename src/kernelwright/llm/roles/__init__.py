"""What an llm is asked as: one role per file, each a function from plain values to a checked answer."""
