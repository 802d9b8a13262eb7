"""The row of a step: columns named as its keys in JSON."""

from __future__ import annotations

import steptime as st
from steptime.describe.step_summary import asked_of, step_card
from steptime.physics.engine import load_engine


def test_what_was_asked_has_the_names_of_json():
    layout = st.Layout(tp=8)
    given = asked_of("mixed", batch=4, context=100, query=2, prompts=3, tokens=50, prefix=7, layout=layout)
    model, system = st.load_model("llama-3.1-70b"), st.load_system("hgx-h100")
    card = step_card(model, system, **given, layout=layout, engine=load_engine("vllm"))
    names = ("batch", "context_tokens", "query_tokens", "prompts", "prompt_tokens", "prefix_tokens")
    keys, row = card.to_dict(), card.columns()
    assert [float(row[name][0]) for name in names] == [keys[name] for name in names] == [4, 100, 2, 3, 50, 7]
