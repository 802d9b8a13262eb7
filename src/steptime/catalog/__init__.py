"""The catalogue: finds and checks data files and loads chips, systems and rents.

Each entry is one TOML file, or, for a model, one JSON file with its config.json. Folders are searched in this order, and
the first folder with the name wins: the folder of --catalog, the user's folder (`STEPTIME_CATALOG`, or `~/.steptime`),
the packaged folder. A path to a file works in place of a name.
"""
