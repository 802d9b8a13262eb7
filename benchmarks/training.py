"""How fast layouts of a training step are searched: `python benchmarks/training.py`.

Prints layouts evaluated, seconds (the best of five) and layouts a second.
"""

import time

import steptime as st
from steptime.training.training_planner import training_job
from steptime.training.training_search import search

CASES = (
    ("llama-3.1-405b", "hgx-h100", 1024, 8192, 1024, "bf16"),
    ("deepseek-v3", "hgx-h800", 2048, 4096, 15360, "fp8"),
    ("llama-3-70b", "gb200-nvl72", 576, 8192, 1152, "mxfp8"),
)


def main() -> None:
    print(f"{'model':16} {'system':14} {'chips':>6} {'layouts':>9} {'seconds':>8} {'a second':>10}")
    for name, machine, chips, seq, batch, dtype in CASES:
        model, system = st.load_model(name), st.load_system(machine)
        engine = st.training_engine("typical", system)
        job = training_job(system, engine, seq=seq, batch=batch, dtype=dtype)
        best, count = float("inf"), 0
        for _ in range(5):
            since = time.perf_counter()
            count = search(model, system, job, engine, chips=chips).count
            best = min(best, time.perf_counter() - since)
        print(f"{name:16} {machine:14} {chips:6,} {count:9,} {best:8.3f} {count / best:10,.0f}")


if __name__ == "__main__":
    main()
