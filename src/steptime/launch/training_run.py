"""A training run as the writers of commands are asked for it: one layout in whole numbers, its hosts, and layers by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from steptime.errors import LayoutError
from steptime.hardware.system import System
from steptime.launch.model_flags import Shape, model_shape
from steptime.models.model import Model
from steptime.physics.layout_constraints import host_chips
from steptime.training.schedules.schedule import schedule_named
from steptime.training.stage_balance import STEM_LAYERS, layers_of_chunks
from steptime.training.training_job import TrainingJob
from steptime.training.training_layout import DEGREES, TrainingLayout, read_layers

STEPS: Final = 100  # of a run that measures
MINE: Final = "synthetic data, {steps} steps and a learning rate that only serves to time a step: put your own in their place"
PORT: Final = 29500  # on which the hosts of a run meet


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is started: ways as whole numbers, micro-batches of a copy in a step, hosts and their chips.

    words: the modules that recomputation names, () for none; group: copies that states are divided over.
    """

    model: Model
    job: TrainingJob
    layout: TrainingLayout
    system: System
    shape: Shape
    tp: int
    pp: int
    virtual: int
    cp: int
    ep: int
    etp: int
    dp: int
    micro_batch: int
    seq: int
    batch: int
    nodes: int
    per_node: int

    @property
    def chips(self) -> int:
        """Chips in all."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a copy in a step."""
        return self.batch // (self.micro_batch * self.dp)

    @property
    def group(self) -> int:
        """Copies that divide states, of which `sharding` says which."""
        return int(self.layout.sharding_group) or self.dp

    @property
    def schedule(self) -> str:
        """The schedule by its own name, "" without a pipeline."""
        return schedule_named(self.layout.schedule).name if self.pp > 1 else ""

    @property
    def words(self) -> tuple[str, ...]:
        """The modules that are computed again; "selective" is attention."""
        word = self.layout.recompute
        return () if word in ("", "none") else ("attention",) if word == "selective" else tuple(word.split("+"))

    @property
    def blackwell(self) -> bool:
        """Whether the chips are of NVIDIA's Blackwell generation or later: the first that multiplies in fp4."""
        return self.system.chip.vendor == "NVIDIA" and "fp4" in self.system.chip.peak

    @property
    def has_given_layers(self) -> tuple[int, ...]:
        """The layers of each chunk where the layout says them, else ()."""
        return read_layers(self.layout.layers) if self.layout.layers else ()

    @property
    def even(self) -> bool:
        """Whether all chunks have as many layers."""
        return (
            len(set(self.has_given_layers)) == 1 if self.has_given_layers else self.shape.layers % (self.pp * self.virtual) == 0
        )

    @property
    def slotted(self) -> bool:
        """Whether all chunks have as many layers once the embedding and the head count as one each."""
        if self.even:
            return False
        if not self.has_given_layers:
            return (self.shape.layers + STEM_LAYERS) % (self.pp * self.virtual) == 0
        first, *between, last = self.has_given_layers
        return len({first + 1, *between, last + 1}) == 1

    @property
    def drafts(self) -> int:
        """Multi-token-prediction layers that are trained."""
        return self.shape.drafts if self.job.mtp else 0


def training_run(model: Model, job: TrainingJob, layout: TrainingLayout, system: System) -> Run:
    """Return what is started; raise LayoutError where that is not one layout, or none that divides its batch and runs."""
    numbers: dict[str, int] = {}
    for name, value in {**{n: getattr(layout, n) for n in DEGREES}, "seq": job.seq, "batch": job.batch}.items():
        if np.ndim(value):
            raise LayoutError(f"commands start one layout, and {name} is an array of {np.size(value)}; take one of its rows")
        numbers[name] = int(value)
    host = host_chips(system)
    chips = numbers["tp"] * numbers["cp"] * numbers["pp"] * numbers["dp"]
    nodes = -(-chips // host)
    if chips % nodes:
        raise LayoutError(
            f"{chips} chips do not divide by the {nodes} hosts of {host} that they need; take {chips // host * host} chips"
        )
    sequences_per_step = numbers["micro_batch"] * numbers["dp"]
    if numbers["batch"] % sequences_per_step:
        raise LayoutError(
            f"a batch of {numbers['batch']} does not divide by {numbers['dp']} copies x {numbers['micro_batch']} sequences; "
            f"take {max(numbers['batch'] // sequences_per_step, 1) * sequences_per_step}"
        )
    virtual = numbers.pop("virtual_stages")
    if numbers["pp"] > 1:
        schedule_named(layout.schedule).check(numbers["pp"], numbers["batch"] // sequences_per_step, virtual)
    return Run(
        model=model, job=job, layout=layout, system=system, shape=model_shape(model, numbers["seq"]), virtual=virtual,
        nodes=nodes, per_node=chips // nodes, **numbers,
    )  # fmt: skip


def layers_by_chunk(run: Run) -> list[int]:
    """Return the layers of each chunk in the order that a micro-batch passes them, as given, or dealt out."""
    if run.has_given_layers:
        return list(run.has_given_layers)
    path = schedule_named(run.layout.schedule).paths(run.pp, run.virtual)[0]
    return layers_of_chunks(run.shape.layers, [int(stage) for stage, _ in path])


def hosts_started(run: Run) -> tuple[str, ...]:
    """Say where a command of several hosts runs."""
    if run.nodes == 1:
        return ()
    return (
        f"on each of {run.nodes} hosts, with its NODE_RANK from 0 to {run.nodes - 1}; HEAD_ADDRESS: the first one's address",
    )


def torchrun(run: Run) -> list[str]:
    """Return `torchrun` with its hosts and the chips of each."""
    if run.nodes == 1:
        return ["torchrun --standalone", f"--nproc-per-node {run.per_node}"]
    return [
        "torchrun",
        f"--nnodes {run.nodes}",
        "--node-rank $NODE_RANK",
        "--master-addr $HEAD_ADDRESS",
        f"--master-port {PORT}",
        f"--nproc-per-node {run.per_node}",
    ]
