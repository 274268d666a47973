"""Headcount: how many users does this LLM server support?"""

__version__ = "0.1.0"
