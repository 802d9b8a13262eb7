"""The command line: one file a command, and the tables and pictures that it prints. No formula lives here."""
