"""Reads printed commands back: words, files and environment as a shell takes them, and what they say of layout and formats.

Written from the engines' documents, and apart from the code that writes the commands.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from steptime.physics.layout import Layout

GOLDEN = Path(__file__).parents[1] / "golden" / "engine_flags"
PACKAGES = {
    "vllm serve": "vllm",
    "python -m sglang.launch_server": "sglang",
    "python -m sglang_router.launch_router": "sglang_router",
    "vllm-router": "vllm_router",
    "trtllm-serve disaggregated": "tensorrt_llm",
    "trtllm-serve": "tensorrt_llm",
}


@dataclass
class Read:
    """A command as a shell takes it."""

    program: str
    flags: dict[str, list[list[str]]]
    place: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def one(self, flag: str, default: Any = None) -> Any:
        """Return the value of a flag that stands once; whole numbers as such."""
        if flag not in self.flags:
            return default
        (values,) = self.flags[flag]
        text = " ".join(values)
        return int(text) if text.isdecimal() else text


def commands(lines: list[str]) -> list[Read]:
    """Return the commands of a script: comments left out, here-documents as files, continued lines joined."""
    found, files, words = [], {}, ""
    rest = iter(lines)
    for line in rest:
        if match := re.fullmatch(r"(?:cat|.*\|g\") > (\S+) <<'(END_[0-9a-f]{16})'", line):
            text, words = [], ""
            for inner in rest:
                if inner == match[2]:
                    break
                text.append(inner)
            files[match[1]] = "\n".join(text)
        elif line.startswith("#") or not line:
            continue
        elif line.endswith("\\"):
            words += line[:-1] + " "
        else:
            found.append(command(shlex.split(words + line), files))
            words = ""
    assert not words
    return found


def command(words: list[str], files: dict[str, str]) -> Read:
    """Return one command from its words."""
    environment = {}
    while re.fullmatch(r"[A-Z][A-Z0-9_]*=.*", words[0]):
        name, _, environment[name] = words[0].partition("=")[0], None, words[0].partition("=")[2]
        words = words[1:]
    if words[0] in ("mpirun", "nginx"):
        start = next((n for n, word in enumerate(words) if word == "trtllm-serve"), None)
        if start is None:
            return Read(program=words[0], flags={}, environment=environment, files=files)
        assert words[start - 1] == "trtllm-llmapi-launch"
        words = words[start:]
    text = " ".join(words)
    program = next(name for name in PACKAGES if text.startswith(name))
    words = words[len(program.split()) :]
    flags: dict[str, list[list[str]]] = {}
    place, last = "", None
    for word in words:
        if word.startswith("-"):
            flags.setdefault(word, []).append([])
            last = word
        elif last is None:
            place = word
        else:
            flags[last][-1].append(word)
    return Read(program=program, flags=flags, place=place, environment=environment, files=dict(files))


def known(program: str) -> tuple[set[str], dict[str, set[str]]]:
    """Return the flags of a program that were extracted from its package, and the values that some may have."""
    told = json.loads((GOLDEN / f"{PACKAGES[program]}.json").read_text())["programs"][program]
    counted = {flag: set(values.split()) for flag, values in told["counted"].items()}
    return set(told["free"].split()) | set(counted), counted


def golden(package: str) -> dict[str, Any]:
    """Return all that was extracted from a package."""
    return json.loads((GOLDEN / f"{package}.json").read_text())


def options_file(text: str) -> dict[str, Any]:
    """Return a file of nested keys in YAML."""
    return yaml.safe_load(text)


# --- what commands say --------------------------------------------------------------------------------------------------


@dataclass
class Said:
    """What a server was told: its layout, sequences of a replica, tokens of a group in a pass, formats ("": as they are)."""

    layout: Layout
    sequences: int
    tokens: float
    weights: str = ""
    kv: str = ""


def said(read: Read, experts: int) -> Said:
    """Return what a command says; `experts` of the model, for engines that count those with their copies."""
    return {"vllm serve": _vllm, "python -m sglang.launch_server": _sglang, "trtllm-serve": _trtllm}[read.program](
        read, experts
    )


def _vllm(read: Read, _: int) -> Said:
    group, pp, dp = (read.one(f"--{way}-parallel-size", 1) for way in ("tensor", "pipeline", "data"))
    cp = read.one("--decode-context-parallel-size", 1)
    extra = json.loads(read.one("--eplb-config", "{}")).get("num_redundant_experts", 0)
    assert ("--enable-eplb" in read.flags) == bool(extra)
    overlapped = 2 if "--enable-dbo" in read.flags else 1
    layout = Layout(
        tp=group // cp, cp=cp, pp=pp, dp=dp, ep=group * dp if "--enable-expert-parallel" in read.flags else 1,
        microbatches=pp * overlapped, redundant_experts=extra,
    )  # fmt: skip
    quantised = {"fp8_per_tensor": "fp8", None: ""}[read.one("--quantization")]
    kv = {"fp8": "fp8", "bfloat16": "bf16", None: ""}[read.one("--kv-cache-dtype")]
    tokens = read.one("--max-num-batched-tokens") / overlapped
    return Said(layout=layout, sequences=read.one("--max-num-seqs") * dp, tokens=tokens, weights=quantised, kv=kv)


def _sglang(read: Read, _: int) -> Said:
    stage, pp, dp, cp = (read.one(f"--{way}-size", 1) for way in ("tp", "pp", "attn-dp", "dcp"))
    overlapped = 2 if "--enable-two-batch-overlap" in read.flags else 1
    layout = Layout(
        tp=stage // dp // cp, cp=cp, pp=pp, dp=dp, ep=read.one("--ep-size", 1), microbatches=pp * overlapped,
        redundant_experts=read.one("--ep-num-redundant-experts", 0),
    )  # fmt: skip
    running = read.one("--max-running-requests")
    decoding = running / dp / pp if read.one("--disaggregation-mode") != "prefill" else 0
    # A chunk that mixes with decode has the sequences that decode.
    decoding = 0 if "--enable-mixed-chunk" in read.flags else decoding
    tokens = (decoding + read.one("--chunked-prefill-size", 0) / dp) / overlapped
    quantised = {"fp8": "fp8", None: ""}[read.one("--quantization")]
    kv = {"fp8_e4m3": "fp8", "bf16": "bf16", None: ""}[read.one("--kv-cache-dtype")]
    return Said(layout=layout, sequences=running, tokens=tokens, weights=quantised, kv=kv)


def _trtllm(read: Read, experts: int) -> Said:
    told = options_file(read.files[read.one("--extra_llm_api_options")])
    stage, pp = read.one("--tp_size"), read.one("--pp_size", 1)
    dp = stage if told.get("enable_attention_dp") else 1
    slots = int(told.get("moe_config", {}).get("load_balancer", {}).get("num_slots", experts))
    layout = Layout(
        tp=stage // dp, pp=pp, dp=dp, ep=read.one("--ep_size", 1), microbatches=pp, redundant_experts=slots - experts
    )  # fmt: skip
    kv = {"fp8": "fp8", "auto": ""}[told["kv_cache_config"]["dtype"]]
    return Said(
        layout=layout, sequences=read.one("--max_batch_size") * dp * pp, tokens=read.one("--max_num_tokens"), kv=kv
    )  # fmt: skip
