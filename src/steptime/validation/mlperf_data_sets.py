r"""MLPerf's data sets: requests of a run, and lengths of prompts and outputs.

Sources, by column of `DATA_SETS`:

- Requests: `Offline.min_query_count` in github.com/mlcommons/inference, loadgen/mlperf.conf and
  language/gpt-oss-120b/mlperf_gptoss.conf (6,396).
- Longest outputs: language/*/README.md of that repository, and https://mlcommons.org/2025/09/deepseek-inference-5-1/ (20K).
- Deviation of outputs: logs of github.com/mlcommons/inference_results_v5.1, mlperf_log_summary.txt of Server and Interactive.
  A request's latency without its first token, over its time per token, is its length. Medians over submissions of the
  50th, 90th and 99th percentiles, over the mean length: Llama-2-70B 0.85, 1.78, 3.3 (136 logs); Llama-3.1-405B 1.07,
  1.46, 1.82 (36); Mixtral-8x7B 0.77, 1.89, 3.9 (11); DeepSeek-R1 0.54, 2.42, 5.3 (8). The deviation of the logarithm is
  $\ln(q_{90} / q_{50}) / 1.28$. Llama-3.1-8B always writes 128 tokens. That round has no logs of gpt-oss-120b. Its outputs
  get the deviation of those of Llama-2-70B.
- Duration: the same logs, Offline. Submitters set a longer minimum than the rule's 600 s, so that the end of a run counts less:
  medians of 2,770 s (Llama-2-70B, 100 logs), 3,130 s (DeepSeek-R1, 9: six data sets on eight chips), 1,330 s
  (Mixtral-8x7B, 11) and 840 s (Llama-3.1-8B, 24). Llama-3.1-405B sends its data set once (19 of 25 logs).
- Prompts of gpt-oss-120b: the performance data set asks for summaries (https://mlcommons.org/2026/03/mlperf-inference-gpt-oss)
  of 6,396 papers of PubMed (column `dataset` of its perf_eval_ref.parquet). These papers have 3,016 words on average
  (https://arxiv.org/abs/1804.05685, table 1), about 1.4 tokens each: a guess of 4,200 tokens. The columns of the runs
  say 1,000. Other prompts are columns of the runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from steptime.units import counted
from steptime.validation.run_table import INTERACTIVE, MLPERF, run_kind

# Minimum duration of an Offline run (loadgen/mlperf.conf, Offline.min_duration).
LEAST_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Requests of a benchmark.

    name: Start of the names of its models.
    first_round: First round of MLPerf Inference with the benchmark (or with its Offline scenario in a data centre).
    requests: Requests of the data set.
    deviation: Standard deviation of the logarithm of output lengths.
    longest: Longest output [tokens].
    seconds: Usual duration of an Offline run [s].
    prompt_tokens: Mean prompt [tokens]; 0 if the runs record it.
    drafts: Speculative tokens per step that the rules allow in the Interactive scenario.
    drafted_since: First round in which they do.
    """

    name: str
    first_round: str
    requests: int
    deviation: float = 0.0
    longest: int = 0
    seconds: float = LEAST_SECONDS
    prompt_tokens: float = 0.0
    drafts: int = 0
    drafted_since: str = ""


DATA_SETS: Final = (
    DataSet(name="llama-2-70b", first_round="v4.0", requests=24576, deviation=0.575, longest=1024, seconds=2770.0),
    DataSet(name="mixtral-8x7b", first_round="v4.1", requests=15000, deviation=0.7, longest=1024, seconds=1330.0),
    DataSet(name="llama-3.1-405b", first_round="v5.0", requests=8313, deviation=0.24, longest=2000),
    DataSet(name="llama-3.1-8b", first_round="v5.1", requests=13368, seconds=840.0),
    DataSet(
        name="deepseek-r1",
        first_round="v5.1",
        requests=4388,
        deviation=1.17,
        longest=20000,
        seconds=3130.0,
        drafts=3,
        drafted_since="v6.0",
    ),
    DataSet(
        name="gpt-oss-120b",
        first_round="v6.0",
        requests=6396,
        deviation=0.575,
        longest=10240,
        prompt_tokens=4200.0,
        drafts=3,
        drafted_since="v6.1",
    ),
)


def find_data_set(row: Mapping[str, str]) -> DataSet | None:
    """Find the data set of a run of MLPerf.

    Args:
        row: Run.

    Returns:
        The data set; None for other runs and unknown models.

    >>> find_data_set({"part": "mlperf", "model": "deepseek-ai/DeepSeek-R1"}).longest
    20000
    """
    if row.get("part") != MLPERF:
        return None
    name = row["model"].casefold().rpartition("/")[2]
    return next((data_set for data_set in DATA_SETS if name.startswith(data_set.name) and "distill" not in name), None)


# Batch sizes of a harness that its engine does not use.
IDLE_BATCH: Final = 128.0
UNUSED_BATCH_MODEL: Final = "gpt-oss"
GPT_OSS_INTERACTIVE: Final = "0.015"
# Boards with two chips, by a word of the note; MLPerf counts boards.
DUAL_BOARD, DUAL_SYSTEM = "b60 dual", "intel-b60-8"


def as_submitted(row: dict[str, str]) -> dict[str, str]:
    """Correct the columns of a run of MLPerf to those of its submission.

    - **Batches that the engine does not use.** Columns of gpt-oss-120b on TensorRT-LLM record 128 or 110 sequences. With 128
      the ideal engine makes 104,181 tok/s on eight B300 and 52,315 on four GB300, but 110,077 and 60,220 were measured (v6.0).
      The limit is taken as not stated.
    - **A limit.** Interactive runs of gpt-oss-120b have 15 ms per token
      (github.com/mlcommons/inference, language/gpt-oss-120b/mlperf_gptoss.conf); their columns say 20 ms.
    - **Boards of two chips.** An Arc Pro B60 Dual 48G has two chips of 24 GB (48 GB in its name). The columns count boards.

    Args:
        row: Run.

    Returns:
        A corrected copy, or the same row if its columns are right.

    >>> as_submitted({"model": "openai/gpt-oss-120b", "system": "hgx-b300", "concurrency": "128.0"})["concurrency"]
    ''
    >>> as_submitted({"system": "intel-b60-8", "note": "Arc Pro B60 Dual 48G", "model": "", "chips": "4"})["chips"]
    '8'
    """
    out, is_gpt_oss = dict(row), UNUSED_BATCH_MODEL in row["model"].casefold()
    if is_gpt_oss and row.get("scenario") == "Interactive":
        out["tpot_limit_s"] = GPT_OSS_INTERACTIVE
    if is_gpt_oss and 0 < float(row.get("concurrency") or 0) <= IDLE_BATCH:
        out["concurrency"] = ""
    if row["system"] == DUAL_SYSTEM and DUAL_BOARD in (row.get("note") or "").casefold() and row.get("chips"):
        out["chips"] = f"{2 * float(row['chips']):.0f}"
    return row if out == row else out


def submission_notes(rows: Iterable[dict[str, str]]) -> list[str]:
    """Return a note on runs whose columns are not those of their submission.

    Args:
        rows: Runs.

    Returns:
        At most one text.
    """
    number = sum(row.get("part") == MLPERF and as_submitted(row) is not row for row in rows)
    text = "of MLPerf with corrected columns: a batch that the engine does not use, a limit, or boards of two chips"
    return [f"{counted(number, 'run')} {text}"] if number else []


def allowed_drafts(row: Mapping[str, str]) -> int:
    """Return the speculative tokens per step that a run of MLPerf may use.

    The Interactive scenario allows three drafts in a chain: of DeepSeek-R1 with the model's own layer (v6.0), and of
    gpt-oss-120b with the EAGLE-3 head nvidia/gpt-oss-120b-Eagle3-long-context (from 2026-07-06 on, after the deadline of v6.0:
    github.com/mlcommons/inference_policies, inference_rules.adoc, appendix "Speculative Decoding").

    Args:
        row: Run.

    Returns:
        Tokens per step; 0 for other scenarios, models and rounds.

    >>> row = {"part": "mlperf", "model": "openai/gpt-oss-120b", "scenario": "Interactive"}
    >>> [allowed_drafts(row | {"engine_version": mlperf_round}) for mlperf_round in ("v6.0", "v6.1")]
    [0, 3]
    """
    data_set = find_data_set(row)
    if data_set is None or run_kind(row) != INTERACTIVE or (row.get("engine_version") or "") < data_set.drafted_since:
        return 0
    return data_set.drafts
