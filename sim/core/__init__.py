"""The mirror of vLLM's `v1/core`: scheduler, KV cache manager and block pool, on the standard library alone."""
