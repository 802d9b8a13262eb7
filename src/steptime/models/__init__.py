"""Models: what a pass does, independent of any chip, and how a config.json becomes one. `families/` has a file a family."""
