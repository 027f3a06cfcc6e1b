"""The run: wiring, loop, gate. Holds keys and journal; never torch, candidate code or the user's model code."""
