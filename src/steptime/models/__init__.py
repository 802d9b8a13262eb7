"""Models: what a forward pass does on any chip, and how a config.json becomes one.

`families/` has one file per family.
"""
