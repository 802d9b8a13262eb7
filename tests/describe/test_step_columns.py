"""The row of a step: columns named as its keys in JSON."""

from __future__ import annotations

from steptime.questions.step_question import STEP


def test_what_was_asked_has_the_names_of_json():
    sizes = {"batch": 4, "context": 100, "query": 2, "prompts": 3, "tokens": 50, "prefix": 7}
    card = STEP.solve({"model": "llama-3.1-70b", "system": "hgx-h100", "phase": "mixed", "tp": 8, **sizes})
    names = ("batch", "context_tokens", "query_tokens", "prompts", "prompt_tokens", "prefix_tokens")
    keys, row = card.to_dict(), card.columns()
    assert [float(row[name][0]) for name in names] == [keys[name] for name in names] == [4, 100, 2, 3, 50, 7]
