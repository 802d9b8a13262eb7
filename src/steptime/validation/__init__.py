"""Predicted against measured: readers of result files, `validate`, `calibrate`, and engines fitted to recorded runs."""
