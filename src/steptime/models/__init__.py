"""Models: the work of a forward pass on any chip, and how to read a config.json.

`families/` has a file per family, or per line of families.
"""
