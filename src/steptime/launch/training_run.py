"""A training run for the writers of commands: one layout in whole numbers, its hosts, and its layers by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from steptime.errors import LayoutError
from steptime.hardware.system import System
from steptime.launch.serve_args import Shape, model_shape
from steptime.models.model import Model
from steptime.physics.layout import host_chips
from steptime.training.layer_profile import STEM_LAYERS, layers_of_chunks
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_job import DEGREES, TrainingJob, TrainingLayout, read_layers

# Steps of a run that only measures.
STEPS: Final = 100
# Note of the stacks with synthetic data.
MINE: Final = "synthetic data, {steps} steps and a learning rate only to time a step: replace them for training"
# Port on which the hosts of a run meet.
PORT: Final = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training run in whole numbers: parallel sizes, batch, and hosts."""

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
        """Number of chips of all hosts."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a data-parallel rank per step."""
        return self.batch // (self.micro_batch * self.dp)

    @property
    def group(self) -> int:
        """Data-parallel ranks that share one copy of the sharded states."""
        return int(self.layout.sharding_group) or self.dp

    @property
    def schedule(self) -> str:
        """Full name of the pipeline schedule; "" without a pipeline."""
        return schedule_named(self.layout.schedule).name if self.pp > 1 else ""

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the recomputed modules; () for none, "selective" means attention."""
        word = self.layout.recompute
        return () if word in ("", "none") else ("attention",) if word == "selective" else tuple(word.split("+"))

    @property
    def blackwell(self) -> bool:
        """Whether the chips are NVIDIA Blackwell or later, the first with fp4 GEMMs."""
        return self.system.chip.vendor == "NVIDIA" and "fp4" in self.system.chip.peak

    @property
    def has_given_layers(self) -> tuple[int, ...]:
        """Layers of each chunk if the layout gives them, else ()."""
        return read_layers(self.layout.layers) if self.layout.layers else ()

    @property
    def even(self) -> bool:
        """Whether all chunks have the same number of layers."""
        return (
            len(set(self.has_given_layers)) == 1 if self.has_given_layers else self.shape.layers % (self.pp * self.virtual) == 0
        )

    @property
    def slotted(self) -> bool:
        """Whether all chunks are equal if embedding and head count as one layer each."""
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
    """Return the run that a layout describes.

    Args:
        model: The model.
        job: Sequence length, batch, formats and optimizer.
        layout: One training layout.
        system: The machine.

    Returns:
        The run in whole numbers.

    Raises:
        LayoutError: If the layout is an array, or does not divide chips or batch, or its schedule does not run.
    """
    numbers: dict[str, int] = {}
    for name, value in {**{n: getattr(layout, n) for n in DEGREES}, "seq": job.seq, "batch": job.batch}.items():
        if np.ndim(value):
            raise LayoutError(
                f"{name}: must be one number to write commands, got an array of {np.size(value)}; give one layout"
            )
        numbers[name] = int(value)
    host = host_chips(system)
    chips = numbers["tp"] * numbers["cp"] * numbers["pp"] * numbers["dp"]

    # The smallest number of hosts must divide the chips, since launchers start equal hosts.
    nodes = -(-chips // host)
    if chips % nodes:
        raise LayoutError(
            f"chips: must divide evenly over {nodes} hosts of {host}, got {chips}; use {chips // host * host} chips"
        )
    sequences_per_step = numbers["micro_batch"] * numbers["dp"]
    if numbers["batch"] % sequences_per_step:
        raise LayoutError(
            f"batch: must be a multiple of dp {numbers['dp']} x micro-batch {numbers['micro_batch']}, got {numbers['batch']}; "
            f"use {max(numbers['batch'] // sequences_per_step, 1) * sequences_per_step}"
        )
    virtual = numbers.pop("virtual_stages")
    if numbers["pp"] > 1:
        schedule_named(layout.schedule).check(numbers["pp"], numbers["batch"] // sequences_per_step, virtual)
    return Run(
        model=model, job=job, layout=layout, system=system, shape=model_shape(model, numbers["seq"]), virtual=virtual,
        nodes=nodes, per_node=chips // nodes, **numbers,
    )  # fmt: skip


def layers_by_chunk(run: Run) -> list[int]:
    """Return the layers of each chunk, in the order of a micro-batch's path.

    Args:
        run: The training run.

    Returns:
        The given layers, or evenly divided ones.
    """
    if run.has_given_layers:
        return list(run.has_given_layers)
    path = schedule_named(run.layout.schedule).paths(run.pp, run.virtual)[0]
    return layers_of_chunks(run.shape.layers, [int(stage) for stage, _ in path])


def hosts_started(run: Run) -> tuple[str, ...]:
    """Return the note on the hosts of a command.

    Args:
        run: The training run.

    Returns:
        One note; empty for a single host.
    """
    if run.nodes == 1:
        return ()
    return (
        f"run on each of {run.nodes} hosts, with NODE_RANK from 0 to {run.nodes - 1}; HEAD_ADDRESS: address of the first host",
    )


def torchrun(run: Run) -> list[str]:
    """Return `torchrun` with its hosts and the chips of each.

    Args:
        run: The training run.

    Returns:
        Words of the command.
    """
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
