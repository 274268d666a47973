"""Results, rendered: `document.py` makes the one object that `run --json` prints, the others show it to people."""
