"""Families of models, one per file."""
