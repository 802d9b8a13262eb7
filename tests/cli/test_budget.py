"""`steptime budget`, `laws` and `rl` as a user types them."""

from __future__ import annotations

import csv
import json
import re

import pytest

from steptime.cli.main import EXAMPLES
from tests.cli.test_commands import run
from tests.cli.test_output import headers
from tests.conftest import each

SPOKEN = "budget --match-quality 100B@200T --tokens-served 200T --lifetime 60d"
SERVED = (
    "budget --match-quality llama-3.1-8b@15T --tokens-served 200T --lifetime 365d --law epoch "
    "--serving-system gb200-nvl72 --speed 50"
)
RL = "rl qwen3-30b-a3b hgx-h100 --chips 32 --tp 2 --rollouts 2048 --output 3200 --longest 4096"


@pytest.mark.parametrize("columns", [60, *(pytest.param(width, marks=pytest.mark.thorough) for width in (80, 120))])
@pytest.mark.parametrize(
    "words",
    [
        SPOKEN,
        pytest.param(SERVED, marks=pytest.mark.slow),
        pytest.param(RL, marks=pytest.mark.thorough),
        "laws",
        pytest.param("laws epoch", marks=pytest.mark.thorough),
        pytest.param("laws --params 70B --tokens 15T", marks=pytest.mark.thorough),
        "laws --moe 37B",
    ],
)
def test_answers_keep_to_the_width_and_break_no_header(words, columns):
    shown = run(words, columns=columns)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert headers(lines) <= headers(run(words, columns=240).stdout.splitlines())


def test_the_answer_is_first_and_in_words():
    shown = run(f"{SPOKEN} --law hoffmann,epoch", columns=120).stdout
    first = " ".join(" ".join(shown.splitlines()[:5]).split())
    assert first.startswith("Train 105 B parameters on 180 T tokens: 85.9x the Chinchilla-optimal 20 tokens per parameter.")
    for figure in ("105 B to 124 B", "75.8 T to 180 T"):
        assert figure in first
    assert "124 B (121 to 124)" in shown
    assert len(shown.splitlines()) <= 40


def test_what_the_ranges_hold_fixed_is_said_where_tokens_are_served():
    served, unserved = (
        " ".join(run(f"budget --usd 5M --law epoch{more}").stdout.split()) for more in (" --tokens-served 1T", "")
    )
    assert "`steptime sensitivity budget`" in served
    assert "sensitivity" not in unserved


def test_json_is_what_python_answers():
    import steptime as st

    told = json.loads(run(f"{SPOKEN} --law epoch --json").stdout)
    del told["summary"]
    made = st.budget("100B@200T", st.Demand(served=200e12, lifetime=60 * 86400.0), law="epoch").to_dict()
    assert told == json.loads(json.dumps(made))
    assert told["schema"] == "steptime.budget/2"
    assert told["choices"][0]["params"] == pytest.approx(124.1e9, rel=0.01)
    assert set(told["choices"][0]["ranges"]) >= {"params", "tokens"}
    assert json.loads(run("laws epoch --json").stdout)["constants"]["alpha"] == 0.3478
    losses = json.loads(run("laws epoch --params 70B --tokens 1.4T --json").stdout)["losses"]
    assert losses[0]["loss"] == pytest.approx(1.974, abs=1e-3)
    assert json.loads(run(f"{RL} --json").stdout)["total_s"] > 0


@pytest.mark.slow
def test_tables_go_to_csv_and_pictures_to_files(tmp_path):
    pytest.importorskip("matplotlib")
    for words, rows in ((SPOKEN, 4), ("laws", 17), ("laws --moe 37B", 20)):
        shown = run(f"{words} --csv out.csv", folder=tmp_path)
        assert shown.returncode == 0, shown.stderr
        with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
            assert len(list(csv.DictReader(file))) >= rows
    for kind in ("cost", "contours", "open", "experts", "frontier"):
        shown = run(f"{SPOKEN} --rl-tokens 10T --plot {kind}.svg --picture {kind}", folder=tmp_path)
        assert shown.returncode == 0, shown.stderr
        assert (tmp_path / f"{kind}.svg").read_text().lstrip().startswith("<?xml")
    assert run("laws --moe 1B --plot board.png", folder=tmp_path).returncode == 0
    assert (tmp_path / "board.png").read_bytes()[:4] == b"\x89PNG"


def test_rl_without_traffic_has_its_picture_too():
    shown = run("budget --match-quality 1B@20B --rl-tokens 4T --law epoch --full", columns=80)
    assert shown.returncode == 0, shown.stderr
    assert "+ RL" in shown.stdout
    assert "x serving" not in shown.stdout


@pytest.mark.slow
def test_two_modes_stand_side_by_side():
    shown = run(f"{SERVED} --full", columns=120).stdout
    assert "Closed form" in shown
    assert re.search(r"trained on [\d,]+ chips of hgx-h100 in bf16 for \d+ days", " ".join(shown.split()))


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("budget", 2, "a budget has one target, and nothing is given"),
        ("budget --match-quality 1B@1T --loss 2", 2, "--match-quality and --loss are given"),
        ("budget --match-quality 1B@1T --tokens-served 1M/s", 2, "'1M/s' is a rate, which needs a --lifetime"),
        ("budget --match-quality 1B@1T --law epock", 2, "did you mean epoch"),
        ("budget --loss 1.5 --law epoch", 1, "at a loss of 1.5: its floor is 1.817"),
        ("budget --match-quality 1B@1T --input 5k", 2, "--input needs --serving-system"),
        ("budget --match-quality 1B@1T --picture cost", 2, "--picture needs --plot"),
        ("budget --match-quality 1B@1T --plot a.txt", 2, "--plot writes a picture"),
        ("budget --match-quality 1B@1T --plot a.png --picture costs", 2, "did you mean cost or contours?"),
        ("budget --match-quality 1B@1T --law epoch --experts 8", 2, "epoch has no input for experts"),
        ("budget --usd many", 2, "--usd: 'many' is not a number"),
        ("budget --compute 1e25 --tokens-served 1e15 --law epoch --discard 2", 2, "discard must be a share"),
        ("laws --params 70B", 2, "--params and --tokens; give both"),
        ("laws nosuch", 2, "unknown law 'nosuch'"),
        ("laws gadre --params 7B --tokens 1T --full", 0, "it lacks constants"),
        ("laws --experts 8", 2, "--experts needs --moe"),
        ("laws epoch --moe 1B", 2, "epoch has no input for experts"),
        (
            "rl llama-3.1-8b hgx-h100 --output 9k --longest 4k",
            2,
            "--longest: must be greater than the mean output of 9,000 tokens",
        ),
    ],
)
def test_bad_input_gets_one_message(tmp_path, words, code, told):
    shown = run(words, columns=200, folder=tmp_path)
    assert shown.returncode == code
    assert told in " ".join((shown.stderr + shown.stdout).split())
    assert "Traceback" not in shown.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["budget", "laws", "rl"])
def test_help_has_examples_that_run(name, tmp_path):
    shown = run(f"{name} --help", columns=120).stdout
    for example in EXAMPLES[name]:
        assert example.split("--")[0].strip() in shown
    pytest.importorskip("matplotlib")
    for example in EXAMPLES[name]:
        assert run(f"{example}{'' if '--plot' in example else ' --json'}", folder=tmp_path).returncode == 0, example


@each(
    "words, code, told",
    [
        ("budget --match-quality 100@200", 2, "tokens must be at least 100,000"),
        ("budget --match-quality 100@200k", 2, "parameters must be at least 10,000"),
        ("budget --loss 100", 2, "loss must be at most 12"),
        ("budget --match-quality 1B@1T --lifetime 60d", 2, "--lifetime needs --tokens-served"),
        ("budget --match-quality 1B@1T --tokens-served 1M/s --lifetime 60", 2, "such as 60d or 2y"),
        ("budget --match-quality 1B@1T --rl-flop 4", 2, "--rl-flop needs --rl-tokens"),
        ("budget --usd 100M --system hgx-h20", 2, "hgx-h20: no rent"),
        ("budget --match-quality 1B@1T --serving-rent 2", 2, "--serving-rent needs --serving-system"),
        ("rl deepseek-v3 hgx-h100 --chips 8", 1, "take --tp 16"),
        ("rl llama-3.1-8b hgx-h100 --off-policy --rollout-share 1", 2, "--rollout-share: 1 is on policy"),
        ("rl llama-3.1-8b hgx-h100 --off-policy --chips 1", 2, "some generate and others train, got 1"),
        ("budget --match-quality 100B@200T --tokens-served 50M/x --lifetime 60d", 2, "--tokens-served: must be tokens"),
        ("laws --params 70B", 2, "give both"),
    ],
)
def test_what_cannot_be_asked_is_named(words, code, told):
    found = run(words)
    assert found.returncode == code
    assert told in " ".join(found.stderr.split())


@pytest.mark.slow
def test_the_answer_has_the_machine_s_too():
    shown = " ".join(run(SERVED, columns=120).stdout.split())
    assert re.search(r"On [\w-]+, train \S+ B parameters on", shown)
    assert re.search(r"epoch extrapolates \S+x beyond 245 M to 318 B tokens", shown)


def test_laws_that_cannot_reach_a_loss_are_left_out_and_said():
    shown = " ".join(run("budget --loss 1.75 --tokens-served 2600T", columns=120).stdout.split())
    assert "left out: epoch has no model" in shown
    assert "Scaling law: hoffmann" in shown


def test_losses_are_told_in_a_sentence_and_written(tmp_path):
    shown = run("laws --params 70B --tokens 1.4T --csv losses.csv", folder=tmp_path, columns=120).stdout
    assert re.match(r"70.0 B parameters on 1.40 T tokens: loss [\d.]+ nats per token by the law epoch; ", shown)
    lines = (tmp_path / "losses.csv").read_text(encoding="utf-8").splitlines()
    rows = {row["law"]: row for row in csv.DictReader(lines)}
    assert float(rows["epoch"]["loss"]) == pytest.approx(1.974, abs=1e-3)


@pytest.mark.slow
def test_a_law_of_one_s_own_is_drawn(tmp_path):
    """A copy of a published law with another constant has its own curve, on which its own choice lies."""
    pytest.importorskip("matplotlib")
    from steptime.catalog.data_files import find

    text = find("laws", "epoch", None).read_text(encoding="utf-8")
    changed = re.sub(r"(?m)^A = \{ value = [\d.]+", "A = { value = 800", text)
    assert changed != text
    (tmp_path / "mine.toml").write_text(changed, encoding="utf-8")
    words = "budget --match-quality 10B@1T --law ./mine.toml --tokens-served 1T --plot x.png"
    for kind in ("cost", "contours", "frontier"):
        assert run(f"{words} --picture {kind}", folder=tmp_path).returncode == 0, kind
