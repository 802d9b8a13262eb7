"""Write the data of price estimates: costs of the models that hosts sell, and priors fitted to prices and these costs.

    python docs/fit_prices.py costs     # data/prices/model_costs.csv: some 80 models on eight systems, a few minutes
    python docs/fit_prices.py contexts TRACE...   # prints mean contexts on the two sides of thresholds (facts.toml, context_*)
    python docs/fit_prices.py           # data/prices/priors.toml, from the shipped rows

Every prior is a figure of the shipped rows, or one of `GIVEN` with its source.
"""

from __future__ import annotations

import csv
import math
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np

from steptime.models.model import active_parameters, cache_bytes_read, kv_bytes_per_token, total_parameters
from steptime.models.model_loading import load_model
from steptime.planning import planner
from steptime.planning.evidence import ANY
from steptime.pricing.bundled_prices import FOLDER, open_rows, table
from steptime.pricing.serving_costs import CALIBRATED_MODES, cost_on, plausible
from steptime.workload.trace_files import read_trace
from steptime.workload.workload import Slo, Workload

# Speeds of the Pareto fronts, in tok/s per user.
SPEEDS = (15, 20, 25, 30, 40, 50, 60, 80, 100, 125, 150, 200)
# Tokens of context: KV bytes per token are the difference between reads at 1 and 2 times this context.
FAR = 500_000


def costs() -> None:
    """Write what tokens of each model cost on each plausible system: equal requests, by closed forms, over all layouts."""
    systems, _ = plausible()
    pairs = {(row.catalogue, row.weights) for row in open_rows()}
    pairs |= {(one["catalogue"], one["weights"]) for one in table("tier_models")["models"]}
    work, slo = Workload(input_tokens=4096, output_tokens=1024, input_spread=0, output_spread=0), Slo(tpot=1 / 40)
    compute = partial(cost_on, workload=work, slo=slo, modes=CALIBRATED_MODES, evidence=ANY)
    with open(FOLDER / "model_costs.csv", "w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        head = "catalogue weights active_parameters total_parameters kv_bytes_per_token kv_bytes_read_per_token system chips"
        out.writerow([*head.split(), "usd_per_request", "input_usd", "output_usd", *(f"usd_at_{speed}" for speed in SPEEDS)])
        for catalogue, weights in sorted(pairs):
            model = load_model(catalogue, weights="fp8" if weights == "fp8" else "")
            cached = load_model(catalogue, kv="bf16")
            read = (cache_bytes_read(cached, 2.0 * FAR) - cache_bytes_read(cached, 1.0 * FAR)) / FAR
            told = [active_parameters(model), total_parameters(model), kv_bytes_per_token(cached), read]
            with patch.object(planner, "find_spec", return_value=None):
                found = [compute(system, model=model) for system in systems]
            for one in found:
                figures = [one.usd_per_request, one.input_usd_per_million, one.output_usd_per_million]
                figures += [float(usd) for usd in one.at_speed(SPEEDS)]
                cells = [f"{value:.6g}" if math.isfinite(value) else "" for value in figures]
                out.writerow([catalogue, weights, *(f"{value:.8g}" for value in told), one.system, one.chips, *cells])
            print(catalogue, weights, flush=True)


def contexts(paths: list[str]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the range of mean contexts below and above thresholds, over the thresholds, from request traces.

    Contexts are prompts, weighted by output tokens. Thresholds: 2k, 4k, ... that at most a quarter of requests and at least 200
    are above; above, up to twice to five times the threshold.
    """
    below, above = [], []
    for path in paths:
        trace = read_trace(path)
        sizes, weights = trace.inputs.astype(float), trace.outputs.astype(float)
        for threshold in 2000 * 2 ** np.arange(8):
            longer = sizes > threshold
            if longer.sum() < 200 or longer.mean() > 0.25:
                continue
            below.append(np.average(sizes[~longer], weights=weights[~longer]) / threshold)
            for times in (2, 4, 5):
                within = longer & (sizes < times * threshold)
                above.append(np.average(sizes[within], weights=weights[within]) / threshold)
    return (min(below), max(below)), (min(above), max(above))


def main() -> None:
    """Write the costs, print the contexts, or write the priors, by the arguments."""
    if sys.argv[1:2] == ["contexts"]:
        print(*contexts(sys.argv[2:]))
        return
    if sys.argv[1:] == ["costs"]:
        costs()
        return
    from price_priors import priors_text

    Path(FOLDER / "priors.toml").write_text(priors_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
