"""Shapes of language models: a built-in table of common ones, and a reader of Hugging Face config.json files.

Start with `find_model`; `ModelSpec` is what it returns.
"""

from sim.models.find import find_model, model_names
from sim.models.quantization import Quantization
from sim.models.spec import ModelSpec, StateSpace

__all__ = ["ModelSpec", "Quantization", "StateSpace", "find_model", "model_names"]
