"""LLMServingSim 2 with its tables and with steptime as its clock, next to vLLM's measured runs of the same requests.

    git clone https://github.com/casys-kaist/LLMServingSim
    git -C LLMServingSim checkout 5daddb21
    git -C LLMServingSim submodule update --init astra-sim
    pip install pyyaml pyinstrument rich pandas
    python benchmarks/llmservingsim.py LLMServingSim

Its scheduler, KV cache, router and request files run as they are. Its tables give the time of each layer of a batch. ASTRA-Sim
adds the layers and simulates the exchanges between chips. On one chip there are no exchanges: `LayerSum` adds the layers, and
ASTRA-Sim need not be built. The first line of each case compares this run with the one that LLMServingSim publishes. With two
chips, the published run is the only one with tables. bench/examples has vLLM 0.19's measured runs of the same requests.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import csv
import importlib
import io
import json
import os
import re
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import steptime as st
from steptime.simulation.scheduling_policy import Policy
from steptime.simulation.simulator_adapters import LlmServingSimTimePredictor
from steptime.workload.traffic import Traffic

MS = 1e-6  # milliseconds per nanosecond
TICK = 1_000_000  # nanoseconds that ASTRA-Sim advances where no chip has work (EventQueue::add_current_time)
BLOCK = 16
MAX_CONTEXT = 16_384  # tokens of the longest context in steptime's table
SAME = 0.01  # relative difference up to which two bandwidths are one


@dataclass(frozen=True)
class Case:
    """A published run: its folder in bench/examples, and what steptime calls its model, system and layout."""

    folder: str
    model: str
    system: str
    chips: int


CASES = (
    Case("RTX4090/Llama-3.1-8B", "llama-3.1-8b", "rtx-4090-8", 1),
    Case("RTXPRO6000/Llama-3.1-8B", "llama-3.1-8b", "rtx-pro-6000-8", 1),
    Case("RTXPRO6000/Qwen3-32B", "qwen3-32b", "rtx-pro-6000-2", 2),
)


@dataclass
class Steps:
    """Sizes of each batch, its time with both clocks [ns], and what each clock took [s]."""

    prompts: list[int] = field(default_factory=list)
    decodes: list[int] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)
    steptime: list[int] = field(default_factory=list)
    mixed: list[float] = field(default_factory=list)  # attention of mixed batches over the sum of its parts, in the tables
    traces: int = 0
    tables_took: float = 0.0
    steptime_took: float = 0.0


class LayerSum:
    """The process of ASTRA-Sim as LLMServingSim talks to it: reads the name of a workload, answers when it has ended.

    Chips without work are asked in its order, the last chip of an instance before the first.
    """

    def __init__(self, chips: int, start: int, durations: dict[str, int]) -> None:
        self.now, self.durations = start, durations
        self.order = [chips - 1, 0] if chips > 1 else [0]
        self.ends, self.iteration, self.asleep = [start] * chips, [0] * chips, set[int]()
        self.queue, self.lines = deque(self.order), deque[str]()
        self.stdin = SimpleNamespace(write=self.write, flush=lambda: None)
        self.stdout = SimpleNamespace(readline=self.readline, flush=lambda: None)
        self.asked, self.started = 0, False

    def readline(self) -> str:
        """Return the next line of output; the question for a chip's next workload comes in two."""
        if not self.lines:
            self.asked = self.next_chip()
            self.lines.append(
                f"sys[{self.asked}] iteration {self.iteration[self.asked]} finished, {self.now} cycles, "
                "exposed communication 0 cycles.\n"
            )
            self.lines.append("Waiting\n")
        return self.lines.popleft()

    def next_chip(self) -> int:
        """Return the next chip without work, at the time when there is one."""
        while True:
            while self.queue:
                chip = self.queue.popleft()
                if self.ends[chip] <= self.now and chip not in self.asleep:
                    return chip
            # A chip that got no work is asked again after another one got some, at the same time.
            if not self.started:
                busy = [end for end in self.ends if end > self.now]
                self.now = min(busy) if busy else self.now + TICK
            self.queue, self.started = deque(self.order), False

    def write(self, text: str) -> None:
        """Read the answer to a question."""
        command = text.strip()
        if command == "done":
            self.asleep.add(self.asked)
        elif command == "exit":
            self.lines.extend(["Checking Non-Exited Systems ...\n", "-\n", "All Request Has Been Exited\n", "-\n"])
        elif command != "pass":
            self.ends[self.asked] = self.now + self.durations[command]
            self.iteration[self.asked] += 1
            self.started = True


class Clocks:
    """Times of a batch on one chip, of the tables and of steptime."""

    def __init__(self, simulator: Any, bandwidth: float, predictor: Any) -> None:
        self.generate, self.bandwidth, self.steps = simulator.generate_trace, bandwidth, Steps()
        self.adapter = LlmServingSimTimePredictor(predictor)

    def layers(self, batch: Any, hardware: str, *args: Any, inputs_root: str, **options: Any) -> list[list[str]]:
        """Return the layers of a batch, as the tables have them: name, time [ns], place and bytes of the input, and more."""
        began = time.perf_counter()
        self.generate(batch, hardware, *args, inputs_root=inputs_root, **options)
        self.steps.tables_took += time.perf_counter() - began
        self.steps.traces += 1
        path = Path(inputs_root, "trace", hardware, batch.model, f"instance0_batch{batch.batch_id}.txt")
        rows = [line.split() for line in path.read_text().splitlines()[3:]]
        path.unlink()
        return rows

    def tables(self, batch: Any, *args: Any, **options: Any) -> int:
        """Return the sum of the layers of a batch, after its input came from the host."""
        rows = self.layers(batch, *args, **options)
        answer = sum(int(row[1]) for row in rows) + int(int(rows[0][3]) / self.bandwidth)
        self.steps.tables.append(answer)
        return answer

    def steptime(self, batch: Any) -> int:
        """Return the time that steptime predicts."""
        began = time.perf_counter()
        answer = self.adapter.batch_nanoseconds(batch)
        self.steps.steptime_took += time.perf_counter() - began
        self.steps.steptime.append(answer)
        self.steps.prompts.append(sum(batch.prefill_q_list))
        self.steps.decodes.append(len(batch.decode_k_list))
        return answer

    def mixed_attention(self, batch: Any, *args: Any, **options: Any) -> None:
        """Keep the time of a batch's attention in the tables over that of its prompts and of its sequences."""
        if not (batch.prefill_q_list and batch.decode_k_list):
            return
        decode, prefill = copy.copy(batch), copy.copy(batch)
        prefill.decode_k_list, prefill.num_decode = [], 0
        decode.prefill_q_list, decode.prefill_k_list, decode.num_prefill = [], [], 0
        together, *parts = (
            sum(int(row[1]) for row in self.layers(part, *args, **options) if row[0].startswith("attention"))
            for part in (batch, decode, prefill)
        )
        self.steps.mixed.append(together / sum(parts))


def run_simulator(root: Path, case: Case, clock: str, predictor: Any) -> tuple[list[dict[str, Any]], Steps, float, int]:
    """Run a case; return its requests, its batches, the seconds that the run took, and the tokens of the KV cache.

    The clock is "tables" or "steptime".
    """
    simulator = importlib.import_module("serving.__main__")
    folder = root / "bench/examples" / case.folder
    meta, config = (json.loads((folder / name).read_text()) for name in ("vllm/meta.json", "config.json"))
    kwargs, durations, alarm = meta["engine_kwargs"], dict[str, int](), [0]
    clocks = Clocks(simulator, config["nodes"][0]["cpu_mem"]["mem_bw"], predictor)
    names = "generate_trace", "generate_graph", "generate_event", "subprocess"
    originals = {name: getattr(simulator, name) for name in names}

    def trace(batch: Any, hardware: str, *args: Any, **options: Any) -> None:
        duration = clocks.steptime(batch)
        if clock == "tables":
            duration = clocks.tables(batch, hardware, *args, **options)
            clocks.mixed_attention(batch, hardware, *args, **options)
        durations[simulator.get_workload(batch, hardware, 0, inputs_root=options["inputs_root"])] = duration

    simulator.generate_trace, simulator.generate_graph = trace, lambda *_, **__: None
    simulator.generate_event = lambda nanoseconds, **_: alarm.__setitem__(0, nanoseconds)
    simulator.subprocess = SimpleNamespace(Popen=lambda *_, **__: LayerSum(case.chips, alarm[0], durations), PIPE=None)
    with tempfile.TemporaryDirectory() as scratch:
        output = str(Path(scratch) / "requests.csv")
        options = {
            "--cluster-config": f"bench/examples/{case.folder}/config.json", "--dataset": meta["dataset_path"],
            "--output": output, "--num-reqs": meta["num_requests"], "--dtype": kwargs["dtype"],
            "--kv-cache-dtype": kwargs["kv_cache_dtype"], "--max-num-seqs": kwargs["max_num_seqs"],
            "--max-num-batched-tokens": kwargs["max_num_batched_tokens"], "--inputs-root": scratch,
        }  # fmt: skip
        before, argv, began, printed = os.getcwd(), sys.argv, time.perf_counter(), io.StringIO()
        sys.argv = ["serving", *(str(part) for pair in options.items() for part in pair)]
        os.chdir(root)
        try:
            with contextlib.redirect_stdout(printed):
                simulator.main()
        finally:
            os.chdir(before)
            sys.argv = argv
            for name, original in originals.items():
                setattr(simulator, name, original)
        took = time.perf_counter() - began
        room = re.search(r"(\d+) tokens / \d+ blocks", printed.getvalue())
        assert room is not None
        return read_requests(Path(output)), clocks.steps, took, int(room[1])


def read_requests(path: Path) -> list[dict[str, Any]]:
    """Return the requests of a file that LLMServingSim wrote, in order of their numbers; times in ms."""
    csv.field_size_limit(1 << 30)
    with path.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["request id"]))
    return [
        {
            "outputs": int(row["output"]), "arrival": int(row["arrival"]) * MS, "first": int(row["TTFT"]) * MS,
            "last": int(row["latency"]) * MS, "gaps": np.array(ast.literal_eval(row["ITL"])) * MS,
        }
        for row in rows
    ]  # fmt: skip


def measured_requests(folder: Path) -> list[dict[str, Any]]:
    """Return the requests that vLLM measured; times in ms after arrival."""
    rows = [json.loads(line) for line in (folder / "vllm/requests.jsonl").read_text().splitlines()]
    # Arrivals are on another clock than tokens.
    offset = min(row["queued_ts"] - row["arrival_time"] for row in rows)
    start = min(row["arrival_time"] for row in rows)
    return [
        {
            "outputs": row["output_toks"], "arrival": 1e3 * (row["arrival_time"] - start),
            "first": 1e3 * (row["first_token_ts"] - row["arrival_time"] - offset),
            "last": 1e3 * (row["last_token_ts"] - row["arrival_time"] - offset),
        }
        for row in rows
    ]  # fmt: skip


def cached_tokens(rows: list[dict[str, Any]]) -> list[int]:
    """Return the prompt tokens of each request that are blocks of an earlier request, as a cache without end has them."""
    known: set[int] = set()
    cached = []
    for row in rows:
        tokens = row["input_tok_ids"] + row["output_tok_ids"]
        keys = [hash(tuple(tokens[: end + BLOCK])) for end in range(0, len(tokens) - BLOCK + 1, BLOCK)]
        blocks = (row["input_toks"] - 1) // BLOCK
        hits = next((i for i, key in enumerate(keys[:blocks]) if key not in known), blocks)
        cached.append(hits * BLOCK)
        known.update(keys)
    return cached


def run_steptime(root: Path, case: Case, system: Any, kv_tokens: int) -> list[dict[str, Any]]:
    """Return the same requests in steptime's simulator; times in ms."""
    meta = json.loads((root / "bench/examples" / case.folder / "vllm/meta.json").read_text())
    rows = [json.loads(line) for line in (root / meta["dataset_path"]).read_text().splitlines()[: meta["num_requests"]]]
    column = {name: np.array([row[name] for row in rows]) for name in ("arrival_time_ns", "input_toks", "output_toks")}
    kwargs = meta["engine_kwargs"]
    limits = {name: kwargs[name] for name in ("max_num_seqs", "max_num_batched_tokens")}
    policy = Policy(**limits, kv_tokens=kv_tokens)
    traffic = Traffic(arrival=1e-9 * column["arrival_time_ns"], inputs=column["input_toks"], outputs=column["output_toks"])
    run = st.simulate(
        case.model, system, traffic, layout=st.Layout(tp=case.chips), engine="vllm", policy=policy,
        cached=np.array(cached_tokens(rows)),
    )  # fmt: skip
    served = run.requests
    return [
        {
            "outputs": row["outputs"], "arrival": 1e3 * row["arrival"], "first": 1e3 * (row["first"] - row["arrival"]),
            "last": 1e3 * (row["finish"] - row["arrival"]),
        }
        for row in served
    ]  # fmt: skip


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return TTFT and TPOT [ms] and output tokens/s of requests."""
    first, last, outputs, arrival = (np.array([row[name] for row in rows]) for name in ("first", "last", "outputs", "arrival"))
    tpot = (last - first) / np.maximum(outputs - 1, 1)
    return {
        "TTFT, mean [ms]": float(np.mean(first)), "TTFT, median [ms]": float(np.median(first)),
        "TTFT, p90 [ms]": float(np.percentile(first, 90)), "TPOT, mean [ms]": float(np.mean(tpot)),
        "TPOT, p90 [ms]": float(np.percentile(tpot, 90)), "end to end, mean [ms]": float(np.mean(last)),
        "output [tok/s]": float(1e3 * np.sum(outputs) / np.max(arrival + last)),
    }  # fmt: skip


def print_steps(steps: Steps) -> None:
    """Print the times of the same batches with both clocks, by kind of batch."""
    tables, answers, prompts, decodes = (np.array(v) for v in (steps.tables, steps.steptime, steps.prompts, steps.decodes))
    kinds = {"decode": prompts == 0, "prefill": decodes == 0, "both": (prompts > 0) & (decodes > 0)}
    print(
        "\n| batches of the run with tables | number | mean, tables [ms] | mean, steptime [ms] | ratio of sums | p10 to p90 |"
    )
    print("|---|---:|---:|---:|---:|---|")
    for kind, chosen in kinds.items():
        if np.any(chosen):
            ratio = np.percentile(answers[chosen] / tables[chosen], [10, 90])
            mean = np.mean(tables[chosen]) * MS, np.mean(answers[chosen]) * MS
            print(
                f"| {kind} | {np.sum(chosen):,} | {mean[0]:.2f} | {mean[1]:.2f} | {mean[1] / mean[0]:.3f} | "
                f"{ratio[0]:.3f} to {ratio[1]:.3f} |"
            )


def systems(root: Path, case: Case) -> dict[str, Any]:
    """Return the system of a case, and the same with the bandwidth of the cluster file where that differs."""
    config = json.loads((root / "bench/examples" / case.folder / "config.json").read_text())
    bandwidth = 1e9 * config["nodes"][0]["instances"][0]["npu_mem"]["mem_bw"]
    shipped = st.load_system(case.system)
    hbm, *rest = shipped.chip.memory
    if abs(bandwidth / float(hbm.bandwidth) - 1) < SAME:
        return {"": shipped}
    chip = replace(shipped.chip, memory=(replace(hbm, bandwidth=bandwidth), *rest))
    return {"": shipped, f", {bandwidth / 1e9:,.0f} GB/s": replace(shipped, chip=chip)}


def compare(root: Path, case: Case) -> None:
    """Run a case with all clocks and print its tables."""
    folder = root / "bench/examples" / case.folder
    boards = systems(root, case)
    published = read_requests(folder / "outputs/sim.csv")
    print(f"\n## {case.folder}: {len(published)} requests, {case.chips} chip{'s' * (case.chips > 1)}\n")
    columns, costs, steps = {"its tables": published}, [], Steps()
    for label, system in boards.items():
        predictor = st.compile_predictor(
            case.model, system, engine="vllm", layout=st.Layout(tp=case.chips), max_context=MAX_CONTEXT
        )  # fmt: skip
        columns["steptime as its clock" + label], taken, took, room = run_simulator(root, case, "steptime", predictor)
        costs.append(f"steptime{label}: {len(taken.steptime):,} batches in {took:.1f} s, "
                     f"{1e6 * taken.steptime_took / len(taken.steptime):,.0f} us an answer, "
                     f"table within {predictor.error:.2%} of exact steps")  # fmt: skip
    if case.chips == 1:
        columns["its tables"], steps, took, _ = run_simulator(root, case, "tables", predictor)
        apart = max(abs(a["last"] / b["last"] - 1) for a, b in zip(columns["its tables"], published, strict=True))
        print(f"Largest difference of a request's end-to-end time from the published run: {apart:.0e}.\n")
        costs.append(f"tables: {len(steps.tables):,} batches in {took:.1f} s, "
                     f"{1e6 * steps.tables_took / steps.traces:,.0f} us a trace of layers")  # fmt: skip
    columns[f"steptime's `simulate`{label}"] = run_steptime(root, case, system, room)
    reference, runs = figures(measured_requests(folder)), {name: figures(rows) for name, rows in columns.items()}
    print("| figure | vLLM, measured | " + " | ".join(runs) + " |\n|---|---:|" + "---:|" * len(runs))
    for name, seen in reference.items():
        cells = (f"{run[name]:,.1f} ({run[name] / seen - 1:+.1%})" for run in runs.values())
        print(f"| {name} | {seen:,.1f} | " + " | ".join(cells) + " |")
    if case.chips == 1:
        print_steps(steps)
        shares = np.percentile(steps.mixed, [10, 50, 90])
        print(f"\nIn the tables, attention of a batch with both takes {shares[1]:.2f} times as long as that of its prompts and "
              f"its sequences apart (median; p10 {shares[0]:.2f}, p90 {shares[2]:.2f}).")  # fmt: skip
    print("\n" + "; ".join(costs) + f". KV cache: {room:,} tokens.")


def main() -> None:
    """Print the tables of all cases."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "LLMServingSim").resolve()
    if not (root / "serving/__main__.py").is_file():
        print(f"No checkout of LLMServingSim in {root}; see the head of this file. Nothing was run.")
        return
    # LLMServingSim runs in the folder of its submodule, which may be empty.
    (root / "astra-sim").mkdir(exist_ok=True)
    sys.path.insert(0, str(root))
    for case in CASES:
        compare(root, case)


if __name__ == "__main__":
    main()
