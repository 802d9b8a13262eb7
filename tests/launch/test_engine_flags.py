"""The reader of engines' flags, on packages of a few lines each that are written as the engines' are."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[2] / "docs" / "engine_flags.py"
SPEC = importlib.util.spec_from_file_location("engine_flags", PLACE)
flags = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(flags)

VLLM = {
    "vllm/config/parallel.py": """
Backend = Literal["naive", "deepep"]
class ParallelConfig:
    all2all_backend: Backend = "naive"
    enable_dbo: bool = False
class EPLBConfig:
    num_redundant_experts: int = 0
class KVTransferConfig:
    kv_role: Literal["kv_producer"] | None = None
class QuantizationConfigArgs:
    moe: str | None = None
class SpeculativeConfig:
    method: str | None = None
""",
    "vllm/engine/arg_utils.py": """
def add(group, kwargs):
    group.add_argument("--all2all-backend", "-a", **kwargs["all2all_backend"])
    group.add_argument("--enable-dbo", **kwargs["enable_dbo"])
""",
    "vllm/entrypoints/common/cli_args.py": """
class BaseFrontendArgs:
    host: str | None = None
class FrontendArgs(BaseFrontendArgs):
    port: int = 8000
""",
    "vllm/envs.py": "VLLM_DEEPEP_X: int = 1\nVLLM_OTHER: int = 1\n",
    "vllm/models/ignored.py": "def (",
}
SGLANG = {
    "sglang/srt/arg_groups/choices.py": 'QUANTS = ["fp8", "awq"]\n',
    "sglang/srt/arg_groups/fields/model.py": """
class Model:
    model_path: A[str, Arg(help="...", aliases=["--model"])]
    quantization: A[Optional[str], Arg(help="...", choices=QUANTS)] = None
    mode: A[Literal["auto", "low"], "..."] = "auto"
    moved: A[int, Arg(help="...", cli_name="--elastic-moved")] = 0
    hidden: A[bool, Arg(no_cli=True)] = False
""",
    "sglang/srt/server_args.py": 'parser.add_argument("--old-name", choices=["amd"])\n',
}
ROUTER = {"sglang_router/router_args.py": 'def add(p, prefix):\n    p.add_argument(f"--{prefix}policy", choices=["random"])\n'}
TRTLLM = {
    "tensorrt_llm/commands/serve.py": """
@click.command("serve")
@click.option("--tp_size", "--tensor_parallel_size", type=int)
@click.option("--backend", type=ChoiceWithAlias(["pytorch", "tensorrt"], {}))
def serve(): ...
@click.command("disaggregated")
@click.option("-c", "--config_file", type=str)
def disaggregated(): ...
""",
    "tensorrt_llm/llmapi/llm_args.py": """
class MoeConfig(Strict):
    backend: Literal["AUTO", "CUTLASS"] = "AUTO"
    _own: int = 0
""",
}


@pytest.mark.parametrize(
    ("name", "files", "wanted"),
    [
        (
            "vllm-1.2.3-py3-none-any.whl",
            VLLM,
            {"vllm serve": ("--enable-dbo --host --no-enable-dbo --port", {"--all2all-backend": "naive deepep"})},
        ),
        (
            "sglang-0.5-py3-none-any.whl",
            SGLANG,
            {
                "python -m sglang.launch_server": (
                    "--elastic-moved --model --model-path",
                    {"--mode": "auto low", "--old-name": "amd", "--quantization": "fp8 awq"},
                )
            },
        ),
        ("sglang_router-0.3-x.whl", ROUTER, {"python -m sglang_router.launch_router": ("", {"--policy": "random"})}),
        (
            "tensorrt_llm-1.2-x.whl",
            TRTLLM,
            {
                "trtllm-serve": ("--tensor_parallel_size --tp_size", {"--backend": "pytorch tensorrt"}),
                "trtllm-serve disaggregated": ("--config_file -c", {}),
            },
        ),
    ],
)
def test_flags_and_their_values_are_read_from_a_wheel(tmp_path, name, files, wanted):
    place = tmp_path / name
    with zipfile.ZipFile(place, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    package, version = flags.name_and_version(place)
    assert version == name.split("-")[1]
    found = flags.compact(flags.READERS[package](flags.read(place, package)))
    for program, (free, counted) in wanted.items():
        told = found["programs"][program]
        assert set(free.split()) <= set(told["free"].split())
        assert {flag: told["counted"][flag] for flag in counted} == counted
        assert not {"--hidden", "--_own"} & set(told["free"].split())
    if package == "vllm":
        assert found["environment"] == ["VLLM_DEEPEP_X"]
        assert found["objects"]["--kv-transfer-config"] == {"kv_role": "kv_producer"}
    if package == "tensorrt_llm":
        assert found["objects"] == {"MoeConfig": {"backend": "AUTO CUTLASS"}}


def test_a_name_without_a_version_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="the name has no package and version"):
        flags.name_and_version(tmp_path / "something.whl")
