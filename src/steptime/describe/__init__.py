"""Summaries of models, systems, engines and scaling laws, as plain data."""
