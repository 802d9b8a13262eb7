"""Fit Chinchilla's points again and print the [spread] of data/laws/epoch.toml: `python docs/fit_laws.py POINTS.csv`.

POINTS.csv has columns params, train_flop and loss: the 245 points read off Figure 4 of Hoffmann et al. (arXiv 2203.15556) by
https://github.com/epoch-research/analyzing-chinchilla; tokens are C / 6N. Takes two minutes.
"""

from __future__ import annotations

import sys

import numpy as np

from steptime.scaling.law_forms import NAMES, refit, without_highest

RESAMPLES = 2000


def main(path: str) -> None:
    """Print the fit of 240 points with its spread, and that of all of them."""
    table = np.genfromtxt(path, delimiter=",", names=True)
    params, losses = table["params"], table["loss"]
    tokens = table["train_flop"] / 6 / params
    kept = without_highest(losses)
    found = refit(params[kept], tokens[kept], losses[kept], bootstraps=RESAMPLES)
    print(found)
    print("90 % intervals:", {name: (f"{found.low[name]:.5g}", f"{found.high[name]:.5g}") for name in NAMES})
    print("names =", list(NAMES))
    print("deviations =", [float(f"{deviation:.5g}") for deviation in found.deviations])
    for row in found.correlations:
        print("   ", [round(value, 5) for value in row])
    print("all points:", refit(params, tokens, losses, bootstraps=0))


if __name__ == "__main__":
    main(sys.argv[1])
