"""Charts as inline SVG: no script, no fonts, no network. Colours are the page's, for light and dark."""
