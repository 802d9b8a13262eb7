"""The same question over many values: models and systems held against one another."""
