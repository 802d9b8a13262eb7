"""Images and recordings on the command line: what is printed, and what is refused with one line and exit code 2."""

from __future__ import annotations

import json

from tests.cli.test_commands import run
from tests.conftest import each

STEP = "step qwen3-vl-8b-instruct hgx-h100 "
SEEN = STEP + "--phase prefill --tokens 500 --image 1024x1024 "


def test_a_model_says_what_images_become():
    shown = run("models qwen3-vl-8b-instruct --image 1024x1024 --image 640x480*4").stdout
    for words in ("1,024", "2,224", "5.80 TFLOP", "576 M"):
        assert words in shown
    data = json.loads(run("models google/gemma-4-E2B-it --audio 30 --json").stdout)
    assert (data["schema"], data["prompt_tokens"], data["media"][0]["kind"]) == ("steptime.image-cost/2", 750, "audio")


def test_a_step_has_the_tower_as_a_term():
    data = json.loads(run(SEEN + "--json").stdout)
    assert data["prompt_tokens"] == 1524
    assert 0 < data["terms_s"]["vision tower"] < data["total_s"]
    assert data["images"]["prompt_tokens"] == 1024
    assert "vision tower" in run(SEEN + "--explain").stdout


@each("size", ["0x0", "1000000000x1", "cat", "-5x5", "64x64*1000000", "''"])
def test_what_is_no_image_is_one_line(size):
    refused = run(STEP + f"--phase prefill --image={size}", columns=400)
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()) == 1


@each(
    "words, said",
    [
        (STEP + "--image 64x64", "--image needs --phase prefill or mixed"),
        ("models --table --image 64x64", "--image needs one model"),
        ("models llama-3.1-8b --image 64x64", "reads text only"),
        ("plan llama-3.1-8b hgx-h100 --image 64x64", "reads text only"),
        ("models qwen3-vl-8b-instruct --image 64x64 --context 9", "--context needs another answer"),
    ],
)
def test_options_that_do_not_go_together(words, said):
    refused = run(words)
    assert refused.returncode == 2
    assert said in " ".join(refused.stderr.split())
