"""The differences from vLLM that are meant."""
ACCEPTED = []
