"""Families of models: each module has one final class that reads the config.json of its `model_types`."""
