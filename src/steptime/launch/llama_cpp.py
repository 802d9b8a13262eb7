"""The command of llama.cpp's server for a plan with the engine llama.cpp.

Flags, defaults and values are those of the table in `tools/server/README.md` of https://github.com/ggml-org/llama.cpp, which
`common/arg.cpp` writes (names of the README in autumn 2026; `-fa` takes a value since August 2025):

- `-m`; `-ngl` (auto, all, or a number; auto by default); `-c` (0: from the model); `-b` (2048); `-ub` (512);
- `-fa on|off|auto` (auto), which a quantised cache of values needs on;
- `-np` (auto: 4 slots and one cache); `-kvu`, off by default with a number of slots;
- `-ctk`, `-ctv` (f16): f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1;
- `-cram` (8192 MiB): prompts that leave their slots stay in the memory of the host;
- `--host` (127.0.0.1), `--port`;
- `-sm none|layer|row|tensor` (layer): tensor divides each layer, and needs `-fit off` (`docs/multi-gpu.md`).

With `-kvu` all slots share one KV cache of `-c` tokens; without it each slot has an equal part. llama.cpp rounds `-c` up to a
multiple of 256 (`src/llama-context.cpp`, GGML_PAD) and has at most 256 sequences (`src/llama-cparams.h`, LLAMA_MAX_SEQ).
"""

from __future__ import annotations

import math
import shlex
from typing import Final

from steptime.launch.host_placement import place_replicas
from steptime.launch.serve_args import no_adapters, serve_args_for_pool, unsaid
from steptime.launch.shell_script import Command, comments, select_texts, spoken
from steptime.planning.plan_result import Plan
from steptime.planning.steady_state import mean_context
from steptime.units import counted

NAME: Final = "llama.cpp"
# llama.cpp's names of KV cache formats.
CACHE: Final = {"bf16": "bf16", "fp16": "f16", "q8_0": "q8_0", "q5_0": "q5_0", "q5_1": "q5_1", "q4_0": "q4_0", "q4_1": "q4_1"}
# More layers than any model has: all of them are on the chip.
ALL_LAYERS: Final = 999
PORT: Final = 8080
# Tokens of the KV cache are a multiple of these.
CACHE_STEP: Final = 256
MARK: Final = ".gguf"
# Share of `-c` below which the tokens of all slots are said.
ROOMY: Final = 0.9


def llama_server_commands(plan: Plan) -> list[str]:
    """Return the lines of a shell script that starts one replica of a plan.

    Args:
        plan: A plan with the engine llama.cpp.

    Returns:
        Comments and the command.
    """
    pool = plan.pools[-1]
    chips = int(pool.layout.chips)
    args, replicas = serve_args_for_pool(plan, pool), place_replicas(plan)
    served = plan.served
    formats = served.weights if served.experts in ("", served.weights) else f"{served.weights}, experts in {served.experts}"
    is_file = served.checkpoint.endswith(MARK) and served.checkpoint.isprintable()
    place = shlex.quote(served.checkpoint) if is_file else '"$GGUF"'
    cache = CACHE.get(served.kv, "")
    room = CACHE_STEP * math.ceil(args.length * args.sequences / CACHE_STEP)
    if math.isfinite(pool.kv_tokens_per_rank):
        # llama.cpp rounds up, beyond the memory that is left.
        room = min(room, max(1, int(pool.kv_tokens_per_rank) // CACHE_STEP) * CACHE_STEP)
    slots_room = args.sequences * float(mean_context(plan.workload))
    tokens = max(args.tokens, args.sequences)
    chips_text = "each chip" if chips == 1 else f"each {chips} chips, which CUDA_VISIBLE_DEVICES names"
    notes = select_texts(
        (not is_file, f"GGUF: file of {served.checkpoint or plan.model} with weights in {formats}"),
        (not cache, f"llama.cpp has no KV cache in {served.kv}: expect a cache of another size"),
        (True, f"{args.sequences} slots are more than the mean batch of the plan; -ub is the chunk and the batch in one pass"),
        (
            slots_room < ROOMY * room,
            f"-c takes all memory that the plan leaves for the KV cache, so that long requests fit: the mean contexts of "
            f"{args.sequences} slots need {slots_room:,.0f} tokens, and a smaller -c leaves the rest free",
        ),
        (True, "up to 8 GiB of old prompts stay in host memory: add -cram 0 where the chip shares it and the plan is full"),
        (True, *no_adapters(served, "llama-server")),
        (chips > 1, "--split-mode tensor is experimental: it runs with CUDA and ROCm, faster with NCCL and RCCL"),
        (True, *unsaid(args, NAME)),
        (
            len(replicas) > 1,
            f"{counted(len(replicas), 'replica')}: the same command on {chips_text}, and a router",
        ),
    )
    words = select_texts(
        (True, f"llama-server -m {place}"),
        (chips > 1, "-sm tensor", "-fit off"),
        (True, f"-ngl {ALL_LAYERS}", f"-c {room}", f"-np {args.sequences}", "-kvu"),
        (True, f"-b {tokens}", f"-ub {tokens}", "-fa on"),
        (cache, f"-ctk {cache}", f"-ctv {cache}"),
        (True, "--host 0.0.0.0", f"--port {PORT}"),
    )
    return [*comments(notes), *spoken(Command(words=tuple(words)))]
