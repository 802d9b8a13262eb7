"""How long questions about budgets and prices take: `python benchmarks/questions.py`.

Prints seconds, the best of three in one process, beside those of a loop of ten million additions in the same process.
"""

import time
from collections.abc import Callable

import numpy as np

import steptime as st
from steptime.scaling.scaling_laws import loss

WORK = st.Workload(input_tokens=2048, output_tokens=512)
SERVING = st.Serving(
    system="gb200-nvl72", workload=WORK, slo=st.Slo(tpot=0.02), weights="fp8", kv="fp8", training_system="hgx-h100"
)
SERVED = st.Demand(served=200e12, lifetime=365 * 86400.0)


def a_loop() -> None:
    total = 0
    for number in range(10**7):
        total += number


def a_million_losses(law: str) -> Callable[[], object]:
    params, tokens = np.geomspace(1e8, 1e12, 1000)[:, None], np.geomspace(1e9, 1e14, 1000)
    return lambda: loss(law, params, tokens)


QUESTIONS: dict[str, Callable[[], object]] = {
    "a loop of ten million additions": a_loop,
    "a million losses by epoch": a_million_losses("epoch"),
    "a million losses by ludziejewski": a_million_losses("ludziejewski"),
    "a budget by six laws": lambda: st.budget("100B@200T", SERVED),
    "a budget by machine too": lambda: st.budget("100B@20T", SERVED, law="epoch", machine=SERVING),
    "a list read backward, 20,000 draws": lambda: st.read_prices("openai/gpt-6-sol", draws=20_000),
    "a model at all its sellers": lambda: st.survey_prices("deepseek-v3"),
}


def main() -> None:
    for name, question in QUESTIONS.items():
        taken = []
        for _ in range(3):
            since = time.process_time()
            question()
            taken.append(time.process_time() - since)
        print(f"{name:36} {min(taken):8.3f} s")


if __name__ == "__main__":
    main()
