"""The command of llama.cpp's server for a plan with the engine llama.cpp.

Flags: `common/arg.cpp` of https://github.com/ggml-org/llama.cpp (b6918): `-m`, `-ngl`, `-c`, `-np`, `-b`, `-ub`,
`-fa`, `-kvu`, `-ctk`, `-ctv`. With `-kvu` all slots share one KV cache of `-c` tokens; without it each slot has an equal part.
"""

from __future__ import annotations

import math
import shlex
from typing import Final

from steptime.launch.host_placement import place_replicas
from steptime.launch.serve_args import serve_args_for_pool
from steptime.launch.shell_script import Command, comments, select_texts, spoken
from steptime.planning.plan_result import Plan
from steptime.units import counted

NAME: Final = "llama.cpp"
# llama.cpp's names of KV cache formats.
CACHE: Final = {"bf16": "bf16", "fp16": "f16", "q8_0": "q8_0", "q5_0": "q5_0", "q5_1": "q5_1", "q4_0": "q4_0", "q4_1": "q4_1"}
# More layers than any model has: all of them are on the chip.
ALL_LAYERS: Final = 999
PORT: Final = 8080
MARK: Final = ".gguf"


def llama_server_commands(plan: Plan) -> list[str]:
    """Return the lines of a shell script that starts one replica of a plan.

    Args:
        plan: A plan with the engine llama.cpp.

    Returns:
        Comments and the command; only the reason as a comment where llama-server cannot run the layout.
    """
    pool = plan.pools[-1]
    if len(plan.pools) > 1 or int(pool.layout.chips) > 1:
        return comments(("llama-server runs replicas of one chip without a prefill pool: plan with --tp 1 --mode aggregated",))
    args, replicas = serve_args_for_pool(plan, pool), place_replicas(plan)
    served = plan.served
    formats = served.weights if served.experts in ("", served.weights) else f"{served.weights}, experts in {served.experts}"
    is_file = served.checkpoint.endswith(MARK) and served.checkpoint.isprintable()
    place = shlex.quote(served.checkpoint) if is_file else '"$GGUF"'
    cache = CACHE.get(served.kv, "")
    room = args.length * args.sequences
    if math.isfinite(pool.kv_tokens_per_rank):
        room = min(room, int(pool.kv_tokens_per_rank))
    tokens = max(args.tokens, args.sequences)
    notes = select_texts(
        (not is_file, f"GGUF: file of {served.checkpoint or plan.model} with weights in {formats}"),
        (not cache, f"llama.cpp has no KV cache in {served.kv}: expect a cache of another size"),
        (True, f"{args.sequences} slots are more than the mean batch of the plan; -ub is the chunk and the batch in one pass"),
        (len(replicas) > 1, f"{counted(len(replicas), 'replica')}: the same command on each chip, with a router before them"),
    )
    words = select_texts(
        (True, f"llama-server -m {place}"),
        (True, f"-ngl {ALL_LAYERS}", f"-c {room}", f"-np {args.sequences}", "-kvu"),
        (True, f"-b {tokens}", f"-ub {tokens}", "-fa on"),
        (cache, f"-ctk {cache}", f"-ctv {cache}"),
        (True, "--host 0.0.0.0", f"--port {PORT}"),
    )
    return [*comments(notes), *spoken(Command(words=tuple(words)))]
