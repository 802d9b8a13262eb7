"""The web page: the boards of the lecture and the HTTP routes; it has no formulas."""
