"""`kernelwright mcp`: the verbs as tools of a coding assistant, over the Model Context Protocol."""
