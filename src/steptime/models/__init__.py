"""Models: what a forward pass does, independent of any chip, and how a config.json becomes a model.

`families/` has one file per family.
"""
