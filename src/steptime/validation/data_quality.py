r"""Data quality: measured runs that contradict physics, or other rows.

- **Weights do not fit.** The weights per chip exceed the chip's memory. The run is in doubt if they exceed the memory that the
  engine uses by default.
- **Faster than physics.** No engine decodes a step of $N$ sequences faster than the busiest resource allows (`Step.lower` of
  the ideal engine). A round of a closed loop of $C$ requests takes at least the time of its decode steps and prefills. These
  bounds are:

$$ t \ge t_{lower}(N), \qquad T_{first} + (O - 1)\, t \ge (O - 1)\, t_{lower}(N) + N P_{lower}. $$

  Here $N$ of the $C$ sequences fit in memory, with an 8-bit KV cache unless the run has a format. A faster run
  had fewer requests in flight than recorded, or found its prompts in a prefix cache.
- **Looks speculative.** A plain run of a model with MTP layers is much faster than predicted, and as fast as predicted with
  speculative tokens. Rows of one set share model, system, engine, version, date and formats. If most rows with few clients look
  speculative, the whole set counts as speculative. With many clients, speculative tokens save little, so one row is no proof. A
  row whose column `spec` excludes speculation is believed.
- **Out of step.** More clients never reduce the time per token. Compare runs of one day that differ in clients only. A run is
  in doubt if it took `SLOWER` times as long as a run with more clients. If two runs of a series did, something else changed
  between the runs, and the whole series is in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from steptime.catalog.acceptance_lengths import acceptance_curve
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.chip_memory import reserved_per_chip, weights_per_chip
from steptime.physics.compute_dtype import with_small_cache
from steptime.physics.engine import IDEAL, Engine
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import draft_bytes, drafted_step
from steptime.validation.closed_loop import Runs, running_sequences, solve_closed_loops
from steptime.validation.run_table import MEASURED, RATES, group_positions, numbers
from steptime.workload.workload import Speculation

WRONG, DOUBTFUL = "cannot be right: ", "in doubt: "
# Measured over predicted TPOT that looks speculative: repeats differ by 4 %, configurations by less than this.
FASTER = 0.75
# Factor within which a run matches the prediction with speculative tokens.
NEAR = 1.3
# Largest usual number of speculative tokens per step.
MOST_DRAFTED = 3
# Clients up to which speculative tokens have a visible effect.
FEW_CLIENTS = 32
# Minimum rows with few clients, and minimum share of them, to judge a whole set.
LEAST_OF_SET, SHARE_OF_SET = 3, 0.6
# Ratio of TPOT to that with more clients; repeats differ by 4 %.
SLOWER = 1.3
# Columns in which the runs of a series may differ.
OF_A_RUN = ("id", "concurrency", "acceptance", "note", "ttft_median_s", *RATES, *MEASURED)
SET = ("model", "system", "engine", "engine_version", "measured", "weight_dtype", "expert_dtype")


def too_heavy(model: Model, system: System, layout: Layout, engine: Engine, drafts: int, count: int) -> Array:
    """Explain for each layout why the weights do not fit on a chip.

    Args:
        model: Model.
        system: System.
        layout: Layouts, with arrays of shape (count,) or scalars.
        engine: Engine, with its memory share.
        drafts: Speculative tokens per step.
        count: Number of layouts.

    Returns:
        Reasons of shape (count,); "" where the weights fit.
    """
    capacity = system.chip.capacity
    room = float(capacity * engine.room.memory_share - np.min(reserved_per_chip(engine, system, layout)))
    weight_bytes = weights_per_chip(model, layout) + (draft_bytes(model, 1.0, layout)[0] if drafts and model.draft else 0.0)
    weight_bytes = np.broadcast_to(weight_bytes, count)
    reasons = np.full(count, "", dtype=object)
    used = f"of which {engine.name} uses {room / 1e9:,.1f}"

    # Above the engine's default share the run is possible, with another setting.
    for i in np.flatnonzero(weight_bytes > room):
        sure = WRONG if weight_bytes[i] > capacity else DOUBTFUL
        reasons[i] = f"{sure}weights do not fit: {weight_bytes[i] / 1e9:,.1f} GB on chips of {capacity / 1e9:,.1f} GB, {used}"
    return reasons


def faster(subject: str, measured: float, soonest: float, sequences: float) -> str:
    """Describe a measurement that is faster than physics allows.

    Args:
        subject: "token" or "request".
        measured: Measured time [s].
        soonest: Minimum time [s].
        sequences: Requests in flight.

    Returns:
        Reason as text.
    """
    times = f"a {subject} took {_format_seconds(measured)}, at least {_format_seconds(soonest)}"
    return f"{WRONG}faster than physics: {times} with {sequences:,.0f} request{'' if sequences == 1 else 's'} in flight"


def soonest_token(
    model: Model, system: System, layout: Layout, speculation: Speculation, batch: Array, context: Number
) -> Array:
    """Return the minimum time per token of a decode pool, for any engine.

    Args:
        model: Model.
        system: System.
        layout: Layout of a decode replica.
        speculation: Speculative tokens and acceptance length.
        batch: Sequences per replica.
        context: Tokens in the KV cache of each sequence.

    Returns:
        Seconds per token, with the shape of `batch`.
    """
    small = model if model.kv_told else with_small_cache(model)
    arguments: dict[str, Any] = {"batch": batch, "context": context, "drafts": speculation.drafts, "layout": layout}
    return drafted_step(small, system, **arguments, engine=IDEAL).lower / speculation.acceptance


class Doubts:
    """Reasons against each row of a list; closed loops are checked group by group."""

    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        self.rows = rows
        self.tpot, self.ttft, self.chips = (numbers(rows, name) for name in ("tpot_s", "ttft_s", "chips"))
        self.verdicts = np.full(len(rows), "", dtype=object)
        self.drafted: dict[int, str] = {}
        self.plain: list[int] = []
        self.looked = np.zeros(len(rows), dtype=bool)

    def look(self, runs: Runs, indices: Array, predicted: Array, engine: Engine) -> None:
        """Check a group of closed loops.

        Args:
            runs: Group of runs.
            indices: Positions of the runs in the rows.
            predicted: Predicted time per token [s] of each run.
            engine: Engine.
        """
        self.looked[indices] = True
        self.verdicts[indices] = too_heavy(runs.model, runs.system, runs.layout, engine, runs.drafts, len(indices))
        self._chips(runs, indices)

        # A lower bound never exceeds the prediction, so slower runs need no check.
        suspects = np.flatnonzero(np.isfinite(self.tpot[indices]) & (self.tpot[indices] < predicted))
        if len(suspects):
            self._bound(runs.select(suspects), indices[suspects])
        if not runs.drafts and runs.model.draft:
            plain = np.array([not self.rows[i].get("spec") for i in indices]) & np.isfinite(self.tpot[indices])
            self.plain += list(indices[plain])
            fast = np.flatnonzero(plain & (self.tpot[indices] < FASTER * predicted))
            if len(fast):
                self._drafts(runs.select(fast), indices[fast], predicted[fast], engine)

    def reasons(self) -> Array:
        """Return the reason against each row.

        Returns:
            Reasons of shape (rows,); "" where there is no doubt.
        """
        verdicts = np.where(self.verdicts == "", self._sets(), self.verdicts)
        return np.where(verdicts == "", self._out_of_step(verdicts == ""), verdicts)

    def _out_of_step(self, good: Array) -> Array:
        """Return reasons against rows that were slower than rows of their series with more clients."""
        verdicts = np.full(len(self.rows), "", dtype=object)
        names = sorted({name for row in self.rows for name in row} - set(OF_A_RUN))
        checked: Array = np.flatnonzero(good & self.looked & np.isfinite(self.tpot))
        for members in group_positions(tuple(map(self.rows[i].get, names)) for i in checked.tolist()):
            indices = checked[members]
            clients = numbers([self.rows[i] for i in indices], "concurrency")
            slow = slower_with_fewer(clients, self.tpot[indices])
            excess = f"over {SLOWER:g} times as long as a run with more clients"
            if slow.sum() == 1:
                verdicts[indices[slow]] = f"{DOUBTFUL}slower with fewer clients: it took {excess} in the same series"
            elif slow.any():
                verdicts[indices] = f"{DOUBTFUL}slower with fewer clients: {slow.sum()} runs of the same series took {excess}"
        return verdicts

    def _chips(self, runs: Runs, indices: Array) -> None:
        """Mark runs whose chips are not a multiple of the chips per replica."""
        chips = self.chips[indices]
        chips_per_replica = np.broadcast_to(runs.layout.chips, indices.shape)
        for i in np.flatnonzero(np.isfinite(chips) & (chips % chips_per_replica != 0)):
            self.verdicts[indices[i]] = (
                f"{WRONG}{chips[i]:,.0f} chips are not a multiple of the {chips_per_replica[i]:,.0f} chips of a replica"
            )

    def _bound(self, runs: Runs, indices: Array) -> None:
        """Mark runs that are faster than the lower bound of a token or of a request."""
        model = runs.model if runs.model.kv_told else with_small_cache(runs.model)
        gained = np.where(np.isnan(runs.acceptance), runs.drafts + 1.0, runs.acceptance)
        arguments: dict[str, Any] = {"drafts": runs.drafts, "layout": runs.layout, "engine": IDEAL}
        context = runs.input_tokens + runs.output_tokens / 2
        running: Array = np.asarray(
            running_sequences(model, runs.system, context=context, concurrency=runs.concurrency, **arguments)
        )
        step = drafted_step(model, runs.system, batch=running, context=context, **arguments).lower / gained
        prefill_seconds = drafted_step(model, runs.system, prompts=runs.layout.dp, tokens=runs.input_tokens, **arguments).lower
        owed = runs.output_tokens - 1
        turn = owed * step + running / runs.layout.dp * prefill_seconds * runs.prompts
        took = self.ttft[indices] + owed * self.tpot[indices]
        for i in np.flatnonzero((self.tpot[indices] < step) | (took < turn)):
            is_request = took[i] < turn[i]
            subject, measured, soonest = (
                ("request", took[i], turn[i]) if is_request else ("token", self.tpot[indices[i]], step[i])
            )
            verdict = faster(subject, measured, soonest, running[i])
            self.verdicts[indices[i]] = self.verdicts[indices[i]] or verdict

    def _drafts(self, runs: Runs, indices: Array, predicted: Array, engine: Engine) -> None:
        """Mark runs that are closer to a prediction with speculative tokens than to the plain one."""
        plain = self.tpot[indices] / predicted
        for drafts, gained in enumerate(acceptance_curve(runs.model.name).tokens[:MOST_DRAFTED], start=1):
            drafted = replace(runs, drafts=drafts, acceptance=np.full(len(indices), gained))
            over = self.tpot[indices] / solve_closed_loops(drafted, engine).tpot
            like = (np.abs(np.log(over)) < np.abs(np.log(plain))) & (np.abs(np.log(over)) < np.log(NEAR))
            for i in np.flatnonzero(like & ~np.isnan(over)):
                self.drafted[int(indices[i])] = (
                    f"{WRONG}looks speculative: {plain[i]:.2f} of the time predicted without speculative tokens, "
                    f"{over[i]:.2f} of the time with {drafts}"
                )

    def _sets(self) -> Array:
        """Return reasons against rows that look speculative, or whose set does."""
        verdicts = np.full(len(self.rows), "", dtype=object)
        plain = np.array(self.plain if self.drafted else [], dtype=int)
        for group in group_positions(tuple(self.rows[i].get(name) or "" for name in SET) for i in plain):
            members = plain[group]
            few_client_rows = [i for i in members if float(self.rows[i]["concurrency"]) <= FEW_CLIENTS]
            like = sum(i in self.drafted for i in few_client_rows)
            if like >= LEAST_OF_SET and like >= SHARE_OF_SET * len(few_client_rows):
                verdicts[members] = (
                    f"{WRONG}looks speculative, like {like} of {len(few_client_rows)} runs of its set with few clients"
                )
        for i, reason in self.drafted.items():
            verdicts[i] = reason
        return verdicts


def slower_with_fewer(clients: Array, seconds: Array) -> Array:
    """Mark runs that took `SLOWER` times as long as a run with more clients.

    Errors in a run make it slower. A run that is too fast for its clients is compared with physics instead.

    Args:
        clients: Requests in flight, of shape (runs,).
        seconds: Time per token [s], of shape (runs,).

    Returns:
        Booleans of shape (runs,).

    >>> slower_with_fewer(np.array([1, 2, 4, 8]), np.array([1.0, 5.0, 1.2, 1.4])).tolist()
    [False, True, False, False]
    """
    against = (clients[:, None] < clients) & (seconds[:, None] > SLOWER * seconds)
    return np.asarray(against.any(axis=1))


def _format_seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
