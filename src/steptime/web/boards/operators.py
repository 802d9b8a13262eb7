"""Board: the roofline of each operator of a decode step. Section 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from steptime.physics.step import ledger_of_step
from steptime.physics.time_ledger import Entry
from steptime.units import counted, percent, show
from steptime.web.board import Answer, Board, Figure, Shared, columns, question_input, slider
from steptime.web.page_subject import Replica, decode_call, load_replica, step_command


class Inputs(Shared):
    """A batch and a context on a number of chips."""

    batch: int = question_input("step.batch", 2048, high=65_536, log=True)
    context: int = question_input("step.context", 8192, high=4_194_304, log=True)
    chips: int = slider(0, 0, 1024, "chips", "chips", "Chips of the replica; 0: the scale-up domain.", is_advanced=True, step=1)


@dataclass(frozen=True, slots=True)
class OperatorPoint:
    """An operator on one chip: FLOP, bytes, peak rate [FLOP/s], and its part of the step [s]."""

    name: str
    term: str
    flops: float
    traffic: float
    peak: float
    seconds: float

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.traffic

    @property
    def rate(self) -> float:
        """FLOP per second that the chip reaches in the operator."""
        return self.flops / self.seconds


def operator_points(entries: list[Entry]) -> Iterator[OperatorPoint]:
    """Yield the operators with arithmetic and traffic.

    Args:
        entries: Lines of a step.

    Yields:
        Operators; lines of one name together.
    """
    sums: dict[tuple[str, str, float], list[float]] = {}
    for entry in entries:
        demand = entry.demand
        if demand is None or not float(demand.flops) or float(entry.seconds) <= 0:
            continue
        times = float(entry.times)
        totals = sums.setdefault((entry.term, entry.name, float(demand.peak)), [0.0, 0.0, 0.0])
        totals[0] += times * float(demand.flops)
        totals[1] += times * float(demand.weights + demand.activations + demand.kv)
        totals[2] += float(entry.seconds)
    for (term, name, peak), (flops, traffic, seconds) in sums.items():
        if traffic > 0:
            yield OperatorPoint(name, term, flops, traffic, peak, seconds)


def answer(inputs: Inputs) -> Answer:
    """Return the operators of a step with their FLOP, bytes and times.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.
    """
    replica = load_replica(inputs, inputs.chips)
    sizes = {"batch": inputs.batch, "context": inputs.context}
    step, entries = ledger_of_step(replica.model, replica.system, sizes, layout=replica.layout, engine=replica.engine)
    operators = sorted(operator_points(entries), key=lambda operator: -operator.seconds)
    total, bandwidth = float(step.total), float(replica.system.chip.hbm.bandwidth)
    share = sum(operator.seconds for operator in operators) / total
    memory_bound = [operator for operator in operators if operator.intensity < operator.peak / bandwidth]
    peaks = sorted({operator.peak for operator in operators})
    return Answer(
        tables={
            "operators": columns("name term intensity rate seconds flops traffic peak", (
                (op.name, op.term, op.intensity, op.rate, op.seconds, op.flops, op.traffic, op.peak) for op in operators
            )),
            "peaks": {"peak": peaks},
        },
        marks={"bandwidth": bandwidth, "total": total},
        sentence=_sentence(inputs, replica, operators, memory_bound, share),
        figures=(
            Figure("step", total, "s", "Time of one decode step of the full model."),
            Figure("operators", share, "%", "Share of the step in operators; the others are network and overheads."),
            Figure("bound by memory", sum(operator.seconds for operator in memory_bound) / total, "%", "Share of the step."),
            *(Figure(op.name, op.seconds, "s", f"{op.term}, {op.intensity:.3g} FLOP per byte") for op in operators[:4]),
        ),
        formula=tuple(
            f"{op.name}: {show(op.flops, 'FLOP')} / {show(op.traffic, 'B')} = {op.intensity:.3g} FLOP/B; "
            f"{show(op.rate, 'FLOP/s')} of {show(min(op.peak, op.intensity * bandwidth), 'FLOP/s')} that the roofline allows"
            for op in operators
        ),
        command=step_command(inputs, replica),
        python=decode_call(inputs, replica),
        notes=("Work of one micro-batch on the busiest chip, with padded tiles of kernels; the engine ideal has no padding.",),
    )  # fmt: skip


def _sentence(
    inputs: Inputs, replica: Replica, operators: list[OperatorPoint], memory_bound: list[OperatorPoint], share: float
) -> str:
    if not operators:
        return "No operator of this step has arithmetic."
    longest = operators[0]
    bound = "memory" if longest in memory_bound else "arithmetic"
    return (
        f"At {counted(inputs.batch, 'sequence')} on {counted(replica.chips, 'chip')}, the longest operator is {longest.name}: "
        f"{show(longest.seconds, 's')} at {longest.intensity:.3g} FLOP per byte, where {bound} is the limit. "
        f"{len(memory_bound)} of {counted(len(operators), 'operator')} wait for memory. Network and overheads take "
        f"{percent(1 - share)} of the step."
    )


BOARD = Board(
    name="operators", title="Which operators wait for memory?", order=15, section=1, inputs=Inputs, answer=answer,
    spoken={"model": "deepseek-ai/DeepSeek-V3", "system": "gb200-nvl72", "batch": 2000, "context": 1, "engine": "ideal"},
    today={"model": "deepseek-ai/DeepSeek-V3", "system": "gb300-nvl72", "batch": 1024, "context": 8192},
)  # fmt: skip
