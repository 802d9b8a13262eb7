"""Writes docs/oracle.json: what the reference implementation says about each model.

Run as `python -m tests.models.oracle_verdicts`.

Needs the extra `oracle`; takes about a minute. The slow tests hold the file to what they find.
"""

from __future__ import annotations

import json

import transformers

from tests.models.test_oracle_transformers import CONFIGS, TABLE, verdict


def main() -> None:
    """Judge every model of the catalogue and write the table, one model a line."""
    transformers.logging.set_verbosity_error()
    rows = {name: verdict(transformers.models.auto, name) for name in CONFIGS}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    TABLE.write_text(f'{{\n "transformers": "{transformers.__version__}",\n "models": {{\n{lines}\n }}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
