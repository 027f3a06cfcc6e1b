"""Language models: who serves them, what they are told, what they may answer, and what that cost."""
