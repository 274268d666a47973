"""Engines in virtual time: what a step costs, when it ends, and what the clients see."""
