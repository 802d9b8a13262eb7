"""Models: the work of a forward pass on any chip, and how to read a config.json.

`families/` has one file per family.
"""
