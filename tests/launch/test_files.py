"""Folders of scripts: what is in them, that a shell reads them, and manifests by the shapes of the released package."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
import yaml

from steptime.launch.host_placement import place_replicas
from steptime.launch.launch_commands import ENGINES, launch_commands, launch_files
from steptime.launch.serve_args import NO_START
from tests.launch.conftest import pool
from tests.launch.draws import plans
from tests.launch.reading import golden, known

PAIR = (pool("prefill", batch=4, chunk=0, tp=2, replicas=2), pool("decode", batch=20, chunk=0, tp=4, pp=4, microbatches=4))


def test_a_script_for_each_host_of_each_replica(build):
    """Sixteen chips that decode are two hosts; the prefill replicas share a third."""
    files = launch_files(build(*PAIR), "vllm")
    assert set(files) == {
        "addresses.sh", "prefill-0.sh", "prefill-1.sh", "decode-0-node-0.sh", "decode-0-node-1.sh", "router.sh", "dynamo.yaml",
        "litellm.yaml", "focus.csv", "README.md",
    }  # fmt: skip
    second = files["decode-0-node-1.sh"]
    assert "HEAD_ADDRESS=$HOST_0\nNODE_ADDRESS=$HOST_1\n" in second
    assert "--node-rank 1 " in second
    assert "NODE_RANK" not in "".join(files.values())
    assert "export CUDA_VISIBLE_DEVICES=2,3\n" in files["prefill-1.sh"]
    assert "PREFILL_1_ADDRESS=$HOST_2\n" in files["addresses.sh"]
    assert "| `decode-0-node-1.sh` | 1 | 0 to 7 |" in files["README.md"]
    trt = launch_files(build(*PAIR), "trtllm")
    assert "decode-0-node-1.sh" not in trt
    assert "HOSTS=$HOST_0:8,$HOST_1:8\n" in trt["decode-0.sh"]
    assert "only on the first one" in trt["README.md"]
    assert set(launch_files(build(*PAIR, vendor="AMD"), "trtllm")) == {"README.md"}
    assert "dynamo.yaml" not in launch_files(build(*PAIR, vendor="AMD"), "vllm")


def test_ranks_of_later_hosts_follow_those_of_the_first(build):
    files = launch_files(build(pool(dp=24, ep=24)), "vllm")
    starts = [
        re.findall(r"--data-parallel-start-rank (\d+)", files[f"serve-0-node-{n}.sh"].replace("\\\n", "")) for n in range(3)
    ]
    assert starts == [[], ["8"], ["16"]]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shell_starts_what_the_scripts_say(build, engine, tmp_path):
    """Run with programs that print their words: each script passes its addresses on, filled in."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("vllm", "python", "trtllm-serve", "mpirun", "vllm-router", "nginx"):
        (programs / name).write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\nenv | grep NIXL || true\n')
        (programs / name).chmod(0o755)
    for name, text in launch_files(build(*PAIR), engine).items():
        (tmp_path / name).write_text(text)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOST_0": "10.0.0.1"}
    for script in sorted(tmp_path.glob("*[0-9r].sh")):
        done = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=True, env=environment)
        assert "$" not in done.stdout, script
        if "node-1" in script.name:
            assert "10.0.0.1" in done.stdout
    if engine == "trtllm":
        assert '"host-2:8101"' in (tmp_path / "router.yaml").read_text()
        assert '"10.0.0.1:8100"' in (tmp_path / "router.yaml").read_text()


RACK = (pool("prefill", batch=4, chunk=0, tp=7, replicas=5), pool("decode", batch=20, chunk=0, dp=36, ep=36))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_each_host_of_a_replica_is_told_its_own_chips(build, engine):
    """Single chips of a rack's last hosts: the fifth replica has what is left on each."""
    made = build(*RACK, host_chips=4, domain_chips=72)
    files = launch_files(made, engine)
    for r in place_replicas(made):
        for rank, devices in enumerate(r.devices):
            told = re.findall(r"export CUDA_VISIBLE_DEVICES=(\S+)", files[f"{r.role}-{r.number}-node-{rank}.sh"])
            assert told == ([] if r.role == "decode" else [str(devices[0])])
            assert f"| `{r.role}-{r.number}-node-{rank}.sh` | {r.hosts[rank]} | " in files["README.md"]


def test_the_processes_of_one_command_for_all_hosts_pick_the_chips_of_theirs(build, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    alone = """#!/bin/sh
while [ "$1" != sh ] && [ "$1" != trtllm-llmapi-launch ]; do shift; done
for rank in 0 1 2 3 4 5 6; do OMPI_COMM_WORLD_RANK=$rank "$@"; done
"""
    (programs / "mpirun").write_text(alone)
    (programs / "trtllm-llmapi-launch").write_text('#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $1 $2"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    made = build(*RACK, host_chips=4, domain_chips=72)
    for name, text in launch_files(made, "trtllm").items():
        (tmp_path / name).write_text(text)
    differ = 0
    for r in place_replicas(made)[:5]:
        script = ["sh", str(tmp_path / f"prefill-{r.number}.sh")]
        done = subprocess.run(script, capture_output=True, text=True, check=True, env={"PATH": f"{programs}:/usr/bin:/bin"})
        assert done.stdout.splitlines() == [f"{own} trtllm-serve org/m" for (own,) in r.devices]
        differ += not r.is_symmetric
    assert differ


def test_later_hosts_with_other_chips_than_each_other_are_told_of_them(build):
    """Five chips of four hosts, and twice threes of three: four beside the fives, two on the fifth host."""
    made = build(pool("prefill", tp=9, replicas=2), pool("decode", tp=20), domain_chips=8)
    for engine in ("vllm", "sglang"):
        text = "\n".join(launch_commands(made, engine))
        assert "\n# DEVICES: chips of this host: 5,6,7 for NODE_RANK 1; 0,1,2 for NODE_RANK 2\n" in text
        assert text.count("CUDA_VISIBLE_DEVICES=$DEVICES ") == 1


def test_hosts_of_a_rack_are_named_together(build):
    made = build(pool(dp=32, ep=32, replicas=3), host_chips=4, domain_chips=72)
    note = "hosts 0 to 15; 18 to 25: each group is in one nvlink domain"
    assert f"# {note}" in launch_commands(made, "vllm")
    assert f"Note: {note}." in launch_files(made, "vllm")["README.md"]


def test_a_script_asks_for_the_checkpoint_that_the_plan_cannot_name(build, tmp_path):
    for name, text in launch_files(build(pool(tp=8), checkpoint=""), "vllm").items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["sh", str(tmp_path / "serve-0.sh")], capture_output=True, text=True, check=False, env={"PATH": "/bin"}
    )
    assert done.returncode != 0
    assert "CHECKPOINT: must be the id or the folder of the weights" in done.stderr


# --- manifests ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_manifests_have_the_keys_and_flags_of_the_released_package():
    shapes = golden("ai_dynamo")["manifest"]
    own = {engine: json.loads(json.dumps(golden("ai_dynamo")["programs"][f"python3 -m dynamo.{engine}"])) for engine in ENGINES}
    package = {"vllm": "vllm serve", "sglang": "python -m sglang.launch_server"}
    seen = 0
    for made, *_ in plans(8):
        for engine in ENGINES:
            files = launch_files(made, engine)
            text = files.get("dynamo.yaml")
            if text is None and made.served.vendor == "NVIDIA":
                # A plan of another engine that this one refuses: the reason alone.
                assert made.engine != engine
                assert set(files) == {"README.md"}
                assert NO_START in files["README.md"]
            if text is None:
                continue
            seen += 1
            lines = [line for line in text.splitlines() if not line.startswith("#")]
            keys = {m[1] for line in lines if (m := re.match(r"\s*(?:- )?([A-Za-z]+):", line))}
            containers = [c["podTemplate"]["spec"]["containers"][0] for c in yaml.safe_load(text)["spec"]["components"]]
            templates = {"envFrom", "secretRef", "limits", "value"}  # of the package's own manifests, beside those models
            known_keys = {key for fields in shapes.values() for key in fields} | templates
            assert keys <= known_keys | {"nvidia"}, keys - known_keys
            flags = {word for one in containers for word in one.get("args", ()) if word.startswith("--")}
            assert flags
            mine = own[engine]
            allowed = set(mine["free"].split()) | set(mine["counted"])
            assert flags <= allowed | (known(package[engine])[0] if engine in package else set()), flags - allowed
    assert seen > 12


def test_a_manifest_of_two_pools(build):
    text = launch_files(build(*PAIR), "vllm")["dynamo.yaml"]
    frontend, prefill, decode = yaml.safe_load(text)["spec"]["components"]
    assert (frontend["name"], prefill["name"], prefill["type"], prefill["replicas"]) == ("Frontend", "prefill", "prefill", 2)
    assert ("multinode" in prefill, decode["multinode"]) == (False, {"nodeCount": 2})
    chips = [c["podTemplate"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for c in (prefill, decode)]
    assert chips == ["2", "8"]
    assert "--node-rank" not in text
    assert "HEAD_ADDRESS" not in text
    _, worker = yaml.safe_load(launch_files(build(pool(tp=8)), "vllm")["dynamo.yaml"])["spec"]["components"]
    assert (worker["name"], worker["type"]) == ("worker", "worker")
