"""The command lines that start a plan's layout in vLLM, SGLang and TensorRT-LLM.

Flags as in vLLM 0.19, SGLang 0.5 and TensorRT-LLM 1.2. Each engine counts batch and chunk its own way, which is noted.
What an engine cannot express is said in a comment line.
"""

from __future__ import annotations

import math

from steptime.physics.engine import load_engine
from steptime.physics.facts import ENGINE, facts_of_engine
from steptime.physics.layout import Layout, exchanges_experts
from steptime.physics.rules import broken
from steptime.planning.deployment import Plan, Pool

ENGINES = ("vllm", "sglang", "trtllm")


def launch_commands(plan: Plan, engine: str) -> list[str]:
    """Return the lines of a shell script: a comment and a command for each pool."""
    writers = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
    length = math.ceil(plan.workload.input_tokens + plan.workload.output_tokens)
    lines = []
    for pool in plan.pools:
        count = int(pool.layout.replicas)
        what = {"serve": "serves prompts and tokens", "prefill": "prefills", "decode": "decodes"}[pool.role]
        lines.append(f"# {count} x {int(pool.layout.chips)} chips: each {what}")
        lines += writers[engine](plan.model, pool, length)
    return lines


def _per_group(pool: Pool) -> int:
    return math.ceil(pool.batch / int(pool.layout.dp))


def _step_tokens(pool: Pool, length: int) -> int:
    """Tokens of one attention group's largest step: its decode batch and a chunk, or a whole pass of prompts."""
    return _per_group(pool) * length if pool.role == "prefill" else _per_group(pool) + max(pool.chunk, 0)


def _unsaid(layout: Layout, engine: str) -> list[str]:
    """Say in comments which overlap of a layout the engine cannot run, by its rules."""
    facts = facts_of_engine(load_engine(engine))
    overlaps = [rule for rule in broken(layout, facts, scopes=(ENGINE,)) if rule.name.startswith("two batches")]
    return [f"# {rule.reason(facts, layout)}: expect steps to be slower" for rule in overlaps]


def _wrapped(words: list[str]) -> list[str]:
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) < 90:
            lines[-1] += " " + word
        else:
            lines[-1] += " \\"
            lines.append("    " + word)
    return lines


def _vllm(model: str, pool: Pool, length: int) -> list[str]:
    m = pool.layout
    words = [f"vllm serve {model}", f"--tensor-parallel-size {int(m.group)}"]
    if m.cp > 1:
        words.append(f"--decode-context-parallel-size {int(m.cp)}")
    if m.pp > 1:
        words.append(f"--pipeline-parallel-size {int(m.pp)}")
    if m.dp > 1:
        words.append(f"--data-parallel-size {int(m.dp)}")
    if m.ep > 1:
        words.append("--enable-expert-parallel")
    if exchanges_experts(m):
        words.append(
            "--all2all-backend deepep_low_latency" if pool.role != "prefill" else "--all2all-backend deepep_high_throughput"
        )
    if m.microbatches > m.pp and exchanges_experts(m):
        words.append("--enable-dbo")
    words += [
        f"--max-num-seqs {_per_group(pool)}",
        f"--max-num-batched-tokens {_step_tokens(pool, length)}",
        f"--max-model-len {length}",
    ]
    if pool.role != "serve":
        role = "kv_producer" if pool.role == "prefill" else "kv_consumer"
        words.append(f"""--kv-transfer-config '{{"kv_connector":"NixlConnector","kv_role":"{role}"}}'""")
    notes = ["# --max-num-seqs and --max-num-batched-tokens count for one data-parallel rank"] if m.dp > 1 else []
    return notes + _unsaid(m, "vllm") + _wrapped(words)


def _sglang(model: str, pool: Pool, length: int) -> list[str]:
    m = pool.layout
    words = [f"python -m sglang.launch_server --model-path {model}", f"--tp-size {int(m.stage)}"]
    notes = []
    if m.cp > 1:
        notes.append(f"# the cache of a sequence over {int(m.cp)} chips has no flag here: expect less room for KV cache")
    if m.pp > 1:
        words.append(f"--pp-size {int(m.pp)}")
    if m.dp > 1:
        words.append(f"--dp-size {int(m.dp)} --enable-dp-attention")
        notes.append("# --max-running-requests and --chunked-prefill-size count for all data-parallel ranks together")
    if m.ep > 1:
        words.append(f"--ep-size {int(m.ep)}")
    if exchanges_experts(m):
        words.append("--moe-a2a-backend deepep")
    if m.microbatches > m.pp and exchanges_experts(m):
        words.append("--enable-two-batch-overlap")
    chunk = _step_tokens(pool, length) if pool.role == "prefill" else pool.chunk
    words.append(f"--max-running-requests {pool.batch}")
    if chunk:
        words.append(f"--chunked-prefill-size {int(chunk * m.dp)}")
    if pool.role == "serve":
        words.append("--enable-mixed-chunk")
    else:
        words.append(f"--disaggregation-mode {pool.role}")
    words.append(f"--context-length {length}")
    return notes + _unsaid(m, "sglang") + _wrapped(words)


def _trtllm(model: str, pool: Pool, length: int) -> list[str]:
    m = pool.layout
    options = ["enable_chunked_prefill: true"] if pool.role != "decode" else []
    notes = []
    if m.dp > 1:
        options.append("enable_attention_dp: true")
        notes.append("# --max_batch_size and --max_num_tokens count for one attention data-parallel rank")
    if m.dp > 1 and m.group > 1:
        notes.append(f"# attention over {int(m.group)} chips inside {int(m.dp)} groups has no flag here: each rank is a group")
    if pool.role != "serve":
        options.append("cache_transceiver_config: {backend: DEFAULT}")
    write = ["cat > options.yaml <<'END'", *options, "END"] if options else []
    words = [f"trtllm-serve {model}", f"--tp_size {int(m.stage)}"]
    if m.pp > 1:
        words.append(f"--pp_size {int(m.pp)}")
    if m.ep > 1:
        words.append(f"--ep_size {int(m.ep)}")
    words += [
        f"--max_batch_size {_per_group(pool)}",
        f"--max_num_tokens {_step_tokens(pool, length)}",
        f"--max_seq_len {length}",
    ]
    if options:
        words.append("--extra_llm_api_options options.yaml")
    return notes + _unsaid(m, "trtllm") + write + _wrapped(words)
