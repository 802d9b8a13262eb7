"""Model families: config.json -> Model.

`family.py` says what a family is; `parts.py` holds the parts that they share; each other module is one family.
"""
