"""A real vLLM server on this machine: a tiny model for it, its start and its stop."""
