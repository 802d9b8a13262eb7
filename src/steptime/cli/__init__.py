"""The command line: one file a command, and the tables and pictures that it prints. No formula lives here."""

import gc

gc.set_threshold(200_000, 50, 1000)  # a command is short: looking for cycles while it imports takes a tenth of its time
