"""Recording real engines, fitting profiles, and checking both. vllm is imported here alone, inside functions."""
