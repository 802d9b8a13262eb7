r"""Which measured runs cannot be right: what they say of themselves against physics, and against the other rows.

- **Weights that do not fit.** What a chip must hold of the model is more than it has; a run is in doubt where it is more than
  the engine uses of its memory by default.
- **Faster than physics.** No engine decodes a step of $N$ sequences sooner than the busiest resource allows (`Step.lower` of
  the ideal engine), and no closed loop of $C$ requests turns round sooner than its steps and prompts keep the chips busy:

$$ t \ge t_{lower}(N), \qquad T_{first} + (O - 1)\, t \ge (O - 1)\, t_{lower}(N) + N P_{lower} $$

  with $N$ those of the $C$ that memory has room for, in a small cache unless the run tells its format. A run below either had
  fewer requests in flight than it says, or found its prompts in a cache.
- **Like a drafted run.** A plain run of a model that has layers to draft with, much faster than predicted and as fast as the
  prediction with drafts. Rows of one set (model, system, engine, version, date, formats) are of one kind where most of those
  with few clients are such: at many clients drafts save little, and a row alone does not tell. A row whose column `spec` says
  that nothing was drafted is taken at its word.
- **Out of step.** More clients never make a token come sooner. Of runs that differ in clients alone, of one day, one that took
  `SLOWER` times as long as one with more clients is in doubt; where two do, something else changed between the runs of that
  series and no run of it can be told right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from steptime.catalog.acceptance_lengths import acceptance_curve
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.chip_memory import weights_per_chip
from steptime.physics.engine import IDEAL, Engine
from steptime.physics.kv_dtype import with_small_cache
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import draft_bytes, drafted_step
from steptime.planning.speculative_config import Speculation
from steptime.validation.closed_loop import running_sequences, solve_closed_loops
from steptime.validation.run_table import MEASURED, RATES

if TYPE_CHECKING:
    from steptime.validation.predictions import Runs

WRONG, DOUBTFUL = "cannot be right: ", "in doubt: "
# of the plain prediction: repeats differ by 4 %, configurations by less than this
FASTER = 0.75
# factor within which a run is like the prediction with drafts
NEAR = 1.3
# tokens a step, that are usual
MOST_DRAFTED = 3
# clients up to which drafts show
FEW_CLIENTS = 32
# rows with few clients, and the share of them, that tell of a whole set
LEAST_OF_SET, SHARE_OF_SET = 3, 0.6
# times as long as with more clients: repeats differ by 4 %
SLOWER = 1.3
# what runs of a series may differ in
OF_A_RUN = (
    "id",
    "concurrency",
    "acceptance",
    "note",
    "ttft_median_s",
    *RATES,
    *MEASURED,
)
SET = ("model", "system", "engine", "engine_version", "measured", "weight_dtype", "expert_dtype")


def too_heavy(model: Model, system: System, layout: Layout, engine: Engine, drafts: int, count: int) -> Array:
    """Say of each of `count` layouts where the weights are more than the engine uses of a chip, "" where they are not."""
    capacity = system.chip.capacity
    room = float(capacity * engine.room.memory_share - engine.room.reserved_bytes)
    weight_bytes = weights_per_chip(model, layout) + (draft_bytes(model, 1.0, layout)[0] if drafts and model.draft else 0.0)
    weight_bytes = np.broadcast_to(weight_bytes, count)
    reasons = np.full(count, "", dtype=object)
    used = f"of which {engine.name} uses {room / 1e9:,.1f}"
    for i in np.flatnonzero(weight_bytes > room):
        sure = WRONG if weight_bytes[i] > capacity else DOUBTFUL
        reasons[i] = f"{sure}weights do not fit: {weight_bytes[i] / 1e9:,.1f} GB on chips of {capacity / 1e9:,.1f} GB, {used}"
    return reasons


def faster(subject: str, measured: float, soonest: float, sequences: float) -> str:
    """Say that something took less time than it can [s] with so many requests in flight."""
    times = f"a {subject} took {_format_seconds(measured)}, at least {_format_seconds(soonest)}"
    return f"{WRONG}faster than physics: {times} with {sequences:,.0f} request{'' if sequences == 1 else 's'} in flight"


def soonest_token(
    model: Model, system: System, layout: Layout, speculation: Speculation, batch: Array, context: Number
) -> Array:
    """Return the least time per token [s] of a pool that decodes `batch` sequences in a replica, whatever its engine."""
    small = model if model.kv_told else with_small_cache(model)
    arguments: dict[str, Any] = {"batch": batch, "context": context, "drafts": speculation.drafts, "layout": layout}
    return drafted_step(small, system, **arguments, engine=IDEAL).lower / speculation.acceptance


class Doubts:
    """What speaks against each of a list of rows; closed loops are looked at group by group."""

    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        self.rows = rows
        self.tpot, self.ttft, self.chips = (
            np.array([float(row.get(name) or "nan") for row in rows]) for name in ("tpot_s", "ttft_s", "chips")
        )
        self.verdicts = np.full(len(rows), "", dtype=object)
        self.drafted: dict[int, str] = {}
        self.plain: list[int] = []
        self.looked = np.zeros(len(rows), dtype=bool)

    def look(self, runs: Runs, indices: Array, predicted: Array, engine: Engine) -> None:
        """Look at a group of closed loops that are the rows `indices`, with their predicted times per token [s]."""
        self.looked[indices] = True
        self.verdicts[indices] = too_heavy(runs.model, runs.system, runs.layout, engine, runs.drafts, len(indices))
        self._chips(runs, indices)
        # no bound lies above a prediction
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
        """Return what speaks against each row, "" for nothing."""
        verdicts = np.where(self.verdicts == "", self._sets(), self.verdicts)
        return np.where(verdicts == "", self._out_of_step(verdicts == ""), verdicts)

    def _out_of_step(self, good: Array) -> Array:
        """Return what speaks against rows that were slower than rows of their series with more clients."""
        verdicts = np.full(len(self.rows), "", dtype=object)
        series: dict[tuple[str | None, ...], list[int]] = {}
        names = sorted({name for row in self.rows for name in row} - set(OF_A_RUN))
        for i in np.flatnonzero(good & self.looked & np.isfinite(self.tpot)).tolist():
            series.setdefault(tuple(map(self.rows[i].get, names)), []).append(i)
        for members in series.values():
            indices = np.array(members)
            clients = np.array([float(self.rows[i]["concurrency"]) for i in indices])
            slow = slower_with_fewer(clients, self.tpot[indices])
            excess = f"over {SLOWER:g} times as long as one with more clients"
            if slow.sum() == 1:
                verdicts[indices[slow]] = f"{DOUBTFUL}out of step: it took {excess} in its series"
            elif slow.any():
                verdicts[indices] = f"{DOUBTFUL}out of step: {slow.sum()} runs of its series took {excess}"
        return verdicts

    def _chips(self, runs: Runs, indices: Array) -> None:
        """Note runs whose chips are no whole number of replicas."""
        chips = self.chips[indices]
        chips_per_replica = np.broadcast_to(runs.layout.chips, indices.shape)
        for i in np.flatnonzero(np.isfinite(chips) & (chips % chips_per_replica != 0)):
            self.verdicts[indices[i]] = (
                f"{WRONG}{chips[i]:,.0f} chips are no whole number of replicas of {chips_per_replica[i]:,.0f}"
            )

    def _bound(self, runs: Runs, indices: Array) -> None:
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
        """Note runs that are nearer to the prediction with some number of drafts than to that without."""
        plain = self.tpot[indices] / predicted
        for drafts, gained in enumerate(acceptance_curve(runs.model.name).tokens[:MOST_DRAFTED], start=1):
            drafted = replace(runs, drafts=drafts, acceptance=np.full(len(indices), gained))
            over = self.tpot[indices] / solve_closed_loops(drafted, engine).tpot
            like = (np.abs(np.log(over)) < np.abs(np.log(plain))) & (np.abs(np.log(over)) < np.log(NEAR))
            for i in np.flatnonzero(like & ~np.isnan(over)):
                self.drafted[int(indices[i])] = (
                    f"{WRONG}like a drafted run: {plain[i]:.2f} of the time predicted without drafts, "
                    f"{over[i]:.2f} of that with {drafts}"
                )

    def _sets(self) -> Array:
        """Return what rows are like drafted runs: by themselves, or since most rows of their set with few clients are."""
        verdicts = np.full(len(self.rows), "", dtype=object)
        sets: dict[tuple[str, ...], list[int]] = {}
        for i in self.plain if self.drafted else ():
            sets.setdefault(tuple(self.rows[i].get(name) or "" for name in SET), []).append(i)
        for members in sets.values():
            few_client_rows = [i for i in members if float(self.rows[i]["concurrency"]) <= FEW_CLIENTS]
            like = sum(i in self.drafted for i in few_client_rows)
            if like >= LEAST_OF_SET and like >= SHARE_OF_SET * len(few_client_rows):
                verdicts[members] = (
                    f"{WRONG}like a drafted run, as {like} of {len(few_client_rows)} of its set with few clients are"
                )
        for i, reason in self.drafted.items():
            verdicts[i] = reason
        return verdicts


def slower_with_fewer(clients: Array, seconds: Array) -> Array:
    """Return which runs took `SLOWER` times as long as one with more clients: clients, seconds and result (runs,).

    What goes wrong in a run makes it slower; one that is too fast for its clients is held against physics.

    >>> slower_with_fewer(np.array([1, 2, 4, 8]), np.array([1.0, 5.0, 1.2, 1.4])).tolist()
    [False, True, False, False]
    """
    against = (clients[:, None] < clients) & (seconds[:, None] > SLOWER * seconds)
    return np.asarray(against.any(axis=1))


def _format_seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
