"""The catalogue: finds data files, checks them and turns them into chips, systems and rents.

A thing is one TOML file (or, for models, one JSON file around a config.json). Folders are searched in this order, the
first that has the name wins: the one given as --catalog, the user's (`STEPTIME_CATALOG`, or `~/.steptime`), the packaged
one. A path to a file works wherever a name does.
"""
