"""UNTRUSTED: builder (source to artefact) and runner (artefact to raw bytes). Started as processes, never imported."""
