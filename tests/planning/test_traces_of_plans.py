"""Plans for the lengths of a trace: the same as for its means and spreads, and never beside other lengths."""

from pathlib import Path

import pytest

import steptime as st
from steptime.errors import InputError, RangeError, UnknownName
from steptime.questions.plan_question import PLAN, RequestSizes, solve
from steptime.questions.registry import find_question
from steptime.questions.step_question import with_layout
from steptime.workload.trace_files import PUBLIC_TRACES, few_requests_caution, read_trace, trace_lengths
from tests.conftest import each

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
FILES = {
    "azure-chat": "AzureLLMInferenceTrace_conv_2023.csv", "azure-code": "AzureLLMInferenceTrace_code_2023.csv",
    "mooncake": "mooncake_conversation_trace.jsonl",
}  # fmt: skip


@pytest.mark.skipif(not SHARED.exists(), reason="the traces are not part of the project")
@pytest.mark.parametrize("name", PUBLIC_TRACES)
def test_public_traces_have_the_figures_of_their_files(name):
    requests, figures = read_trace(SHARED / FILES[name]), PUBLIC_TRACES[name]
    served = requests.outputs > 0
    for lengths, mean, spread in (
        (requests.inputs[served], figures.input_tokens, figures.input_spread),
        (requests.outputs[served], figures.output_tokens, figures.output_spread),
    ):
        assert (round(lengths.mean()), lengths.std() / lengths.mean()) == (mean, pytest.approx(spread, abs=0.001))


def test_a_file_gives_means_and_spreads_of_requests_with_output(tmp_path):
    """Inputs 100 and 300: mean 200, deviation 100. The request without output does not count."""
    file = tmp_path / "own.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,100,20\n1,300,20\n2,9000,0\n")
    found = trace_lengths(str(file))
    assert (found.input_tokens, found.output_tokens, found.input_spread, found.output_spread) == (200, 20, 0.5, 0.0)
    requests = RequestSizes(trace=str(file), cached=0.25).workload()
    assert requests == st.Workload(input_tokens=200, output_tokens=20, cached_share=0.25, input_spread=0.5, output_spread=0.0)
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,100,0\n")
    with pytest.raises(InputError):
        trace_lengths(str(file))


def test_trace_of_one_request_is_cautioned(tmp_path, closed_forms):
    file = tmp_path / "own.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,100,20\n")
    found = solve({"model": "llama-3.1-8b", "system": "hgx-h100", "chips": 1, "trace": str(file)}, diagnostics=False)
    assert found.warnings[0] == trace_lengths(str(file)).caution == few_requests_caution(1) != ""
    assert trace_lengths("azure-chat").caution == few_requests_caution(30) == ""


def test_a_trace_sets_all_lengths():
    for other in ({"input": 100}, {"output": 100}, {"spread": 0.0}, {"output_spread": 1.0}):
        with pytest.raises(RangeError):
            RequestSizes(trace="azure-chat", **other).workload()
    with pytest.raises(UnknownName):
        RequestSizes(trace="azure-cht").workload()


def test_the_question_takes_a_trace(closed_forms):
    subject = {"model": "llama-3.1-8b", "system": "hgx-h100", "chips": 1, "mode": "aggregated"}
    lengths = {"input": 1155, "output": 211, "spread": 0.960, "output_spread": 0.771}
    names = frozenset({"requests_per_second", "layout_text"})
    traced, given = PLAN.ask(subject | {"trace": "azure-chat"}, names), PLAN.ask(subject | lengths, names)
    assert repr(traced) == repr(given)  # figures that are unknown are equal too


@each("name", ["plan", "train", "rl"])
def test_only_questions_about_one_serving_layout_get_a_default_one(name):
    values = {"model": "llama-3.3-70b", "system": "hgx-h100"}
    assert with_layout(find_question(name), values) == values
    assert with_layout(find_question("step"), values)["tp"] > 1


@pytest.mark.thorough
@pytest.mark.parametrize("evidence", ["measured", pytest.param("any", marks=pytest.mark.slow)])
def test_a_machine_with_faster_memory_serves_more_short_outputs(evidence):
    """The H200 is an H100 with more and faster memory. Few sequences decode at a time."""
    requests = st.Workload(input_tokens=2048, output_tokens=28, input_spread=0.964, output_spread=2.147)
    rates = [
        st.plan(
            "llama-3.3-70b", name, requests, st.Slo(speed=30), modes="aggregated", evidence=evidence, diagnostics=False,
            alternatives=False, elasticities=False,
        ).requests_per_second
        for name in ("hgx-h100", "hgx-h200")
    ]  # fmt: skip
    assert rates[1] >= rates[0] * 0.99 > 0
