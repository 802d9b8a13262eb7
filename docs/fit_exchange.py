"""Write the time of a phase of an exchange of tokens with experts: `python docs/fit_exchange.py KERNELS RUNS.csv ...`.

KERNELS is a folder with exchange_deepep_low_latency.parquet: dispatch and combine of DeepEP's low-latency kernels, timed alone
(AIConfigurator, Apache-2.0). The time for at most `FEW` tokens on one node is that of a phase without work. AMD's chips have no
timings. There the factor follows from whole runs: SGLang with MoRI on MI355X, with data-parallel ranks (InferenceX).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from fit_kernels import SYSTEMS, URL

from steptime.catalog.hardware_loading import load_chip, resolve_system
from steptime.physics.attention_kernels import ANY
from steptime.physics.collectives import load_exchanges
from steptime.physics.engine import with_constants
from steptime.validation.predictions import predict, resolve_engine
from steptime.validation.run_table import POOLS, read_runs, run_kind

FILE: Final = Path(__file__).parent.parent / "src" / "steptime" / "data" / "kernels" / "exchange.toml"
# Most tokens of a call that has no work.
FEW: Final = 8
# Factors on the present time that are tried for chips without timings.
FACTORS: Final = np.exp(np.linspace(-1.5, 3.5, 51))
HEAD: Final = f"""# Exchange of tokens with experts: seconds of a phase (dispatch or combine) besides the transfer.
# Written by docs/fit_exchange.py. cdna3 and cdna4: from whole runs of MI355X, for all that MoRI's exchange adds.

[source]
url = "{URL}"
date = "2026-11-28"
grade = "measured"
note = "timings of one call by aiconfigurator-core 0.12.0, systems/data; AMD: public runs of InferenceX"
"""


def timed(folder: Path) -> dict[str, tuple[float, int]]:
    """Return seconds of a phase, and the number of timings, by generation of chips."""
    table = pd.read_parquet(folder / "exchange_deepep_low_latency.parquet")
    alone = table[(table.node_num == 1) & (table.num_token <= FEW)]
    seconds = (alone.dispatch_avg_t_us + alone.combine_avg_t_us) / 2e6
    chips = alone.system.map({name: load_chip(chip)[0].generation for name, chip in SYSTEMS.items()})
    groups = {str(name): (float(part.median()), len(part)) for name, part in seconds.groupby(chips)}
    return groups | {ANY: (float(np.median([seconds for seconds, _ in groups.values()])), len(alone))}


def of_runs(paths: list[str]) -> tuple[float, int]:
    """Return seconds of a phase on AMD's chips, with which half of the runs are slower than predicted, and their number."""
    rows = [
        row
        for path in paths
        for row in read_runs(path)[0]
        if run_kind(row) == POOLS and float(row.get("dp") or 1) > 1 and resolve_system(row["system"]).chip.vendor == "AMD"
    ]
    measured = np.array([float(row.get("tpot_s") or "nan") for row in rows])
    (name,) = {row["engine"] for row in rows}
    errors = []
    for factor in FACTORS:
        engine = with_constants(resolve_engine(name), {"exchange_time": factor})
        told = predict(rows, engine=engine, by_simulation=False)
        off = np.log(told.tpot / measured)[(told.reason == "") & np.isfinite(measured)]
        errors.append(np.median(off))
    seconds = load_exchanges()
    generation = resolve_system(rows[0]["system"]).chip.generation
    return float(np.interp(0.0, errors, FACTORS)) * seconds.get(generation, seconds[ANY]), len(off)


def main() -> None:
    """Write the file."""
    entries = timed(Path(sys.argv[1]))
    if sys.argv[2:]:
        entries |= dict.fromkeys(("cdna3", "cdna4"), of_runs(sys.argv[2:]))
    lines = [
        f'\n[[kernel]]\nchips = "{chips}"\nseconds = {seconds:.3e}\ntimings = {count}\n'
        for chips, (seconds, count) in sorted(entries.items())
    ]
    FILE.write_text(HEAD + "".join(lines), encoding="utf-8")
    print("".join(lines))


if __name__ == "__main__":
    main()
