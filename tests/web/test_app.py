"""The HTTP routes: what is answered, what is refused with its field, what is too large, too slow or from elsewhere."""

from __future__ import annotations

import asyncio
import json
import re
import string
from itertools import count
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

import steptime as st
from steptime.catalog.system_template import template
from steptime.web.app import app_for
from steptime.web.board import Shared, described, load_boards
from steptime.web.page_export import along, grid
from steptime.web.server import Limits
from tests.conftest import each, examples

BOARDS = sorted(load_boards())
# A busy machine answers the same, later.
CLIENT = TestClient(app_for(hosts=("*",), limits=Limits(seconds=300)))
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 32, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip


def asked(name, **body):
    return CLIENT.post(f"/api/boards/{name}", json=body)


# Boards whose answers have tests of their own.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough) if name in ("compare", "mixing", "plan") else name for name in BOARDS],
)
def test_a_board_answers_its_defaults_with_columns_of_one_length_and_a_sentence(name, closed_forms):
    answer = asked(name)
    assert answer.status_code == 200, answer.text
    data = answer.json()
    assert data["tables"]
    for table in data["tables"].values():
        assert len({len(column) for column in table.values()}) == 1
    assert data["sentence"].endswith((".", "?", "!"))
    assert "nan" not in data["sentence"].casefold().split()
    assert "steptime " in data["command"]
    assert data["python"].startswith("import steptime as st")
    assert data["figures"]
    assert CLIENT.get(f"/api/boards/{name}").json() == data


@pytest.mark.slow
@pytest.mark.parametrize("name", BOARDS)
def test_presets_are_inputs_of_their_boards_and_are_answered(name):
    board = load_boards()[name]
    for preset in (board.spoken, board.today):
        assert set(preset) <= set(board.inputs.model_fields)
        assert asked(name, **preset).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("name", BOARDS)
def test_both_ends_of_each_slider_are_answered_or_refused_at_their_field(name):
    board = load_boards()[name]
    for one in described(board.inputs):
        values = [one["low"], one["high"]] if one["kind"] == "slider" else one.get("options", [""])
        for value in values:
            answer = asked(name, **{one["name"]: value})
            assert answer.status_code in (200, 422), answer.text
            if answer.status_code == 422:
                assert answer.json()["detail"][0]["msg"]


def test_the_page_is_told_its_boards_inputs_and_the_whole_catalogue():
    start = CLIENT.get("/api/start").json()
    assert [board["name"] for board in start["boards"]] == list(load_boards())
    assert len(start["models"]) > 190
    assert {"hgx-h100", "gb200-nvl72"} <= {one["name"] for one in start["systems"]}
    for board in start["boards"]:
        for one in board["inputs"]:
            assert one["kind"] in ("slider", "choice", "text")
            assert one["label"]
            assert one["words"]
            if one["kind"] == "slider":
                assert one["low"] <= one["default"] <= one["high"]


def test_each_board_has_its_picture():
    for name in BOARDS:
        assert CLIENT.get(f"/static/boards/{name}.js").status_code == 200


def test_a_pasted_config_and_a_pasted_system_are_those_of_the_catalogue():
    plain = asked("step", model="llama-3.1-8b", system="hgx-h100", weights="bf16").json()
    pasted = asked("step", model=json.dumps(LLAMA), system="hgx-h100", weights="bf16").json()
    assert pasted["tables"] == plain["tables"]
    toml = asked("step", model="llama-3.1-8b", system=template("hgx-h100"), weights="bf16")
    assert toml.json()["tables"] == plain["tables"]


@each(
    "body, field, says",
    [
        ({"batch": 0}, "batch", "batch must be at least 1"),
        ({"batch": 1e9}, "batch", "batch must be at most 65,536"),
        ({"batch": 1.5}, "batch", "batch must be a whole number"),
        ({"batch": "many"}, "batch", "batch must be a whole number"),
        ({"batch": None}, "batch", "batch must be a whole number"),
        ({"spin": 1}, "spin", "spin is not an input of this board"),
        ({"model": "llama-9"}, "model", "unknown model 'llama-9'; did you mean"),
        ({"model": "/etc/passwd"}, "model", "unknown model '/etc/passwd'"),
        ({"model": "../../pyproject.toml"}, "model", "unknown model"),
        ({"model": "{"}, "model", "the pasted config.json is not JSON"),
        ({"model": "[]"}, "model", "must be one object, in braces"),
        ({"system": "chips = 8"}, "system", "pasted"),
        ({"model": '{"model_type": "llama"}'}, "model", "'num_hidden_layers' is missing"),
        # They are nested too deep, or not JSON: Python 3.14 reads some 50,000 levels and then finds no end.
        ({"model": "[" * 50_000}, "model", " is n"),
        ({"model": '{"a":' * 20_000}, "model", " is n"),
        ({"system": "hgx-h1000"}, "system", "unknown system 'hgx-h1000'; did you mean hgx-h100"),
        ({"system": "a\n=b"}, "system", "the pasted system is not TOML"),
        ({"system": 'chip = "../../x"\nchips = 8'}, "system", "unknown chip '../../x'"),
        ({"system": "chips = 8\nname = 'x'"}, "system", "pasted"),
        ({"engine": "vlllm"}, "engine", "unknown engine 'vlllm'; did you mean vllm"),
        ({"weights": "fp5"}, "weights", "unknown number format 'fp5'"),
        ({"kv": "fp5"}, "kv", "unknown KV format 'fp5'"),
    ],
)
def test_what_is_wrong_is_told_at_its_field_in_the_words_of_the_library(body, field, says):
    answer = asked("step", **body)
    assert answer.status_code == 422
    (detail,) = answer.json()["detail"]
    assert detail["field"] == field
    assert says in detail["msg"]
    assert "/tmp" not in answer.text
    assert len(detail["msg"]) < 600


def test_a_request_that_is_too_large_or_too_slow_is_refused():
    app = app_for(hosts=("*",), limits=Limits(body=1000, arrival=0.2))
    assert TestClient(app).post("/api/boards/step", content=b"x" * 2000).status_code == 413

    async def slow():
        sent = []
        pieces = iter([{"type": "http.request", "body": b'{"ba', "more_body": True}])

        async def receive():
            if (piece := next(pieces, None)) is None:
                await asyncio.sleep(30)
            return piece

        async def send(message):
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            "type": "http", "method": "POST", "path": "/api/boards/step", "headers": headers, "query_string": b"",
            "raw_path": b"/api/boards/step", "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1),
            "http_version": "1.1", "root_path": "", "asgi": {"version": "3.0"},
        }  # fmt: skip
        started = perf_counter()
        await app(scope, receive, send)
        return sent[0]["status"], perf_counter() - started

    status, seconds = asyncio.run(slow())
    assert status == 408
    assert seconds < 5


def test_an_answer_that_takes_too_long_is_given_up(monkeypatch):
    import time

    from steptime.web import board as module

    step = load_boards()["step"]
    slow = module.Board(
        name="step", title=step.title, order=1, section=1, inputs=step.inputs, answer=lambda _: time.sleep(1) or step.answer(_)
    )
    monkeypatch.setattr("steptime.web.app.load_boards", lambda: {"step": slow})
    answer = TestClient(app_for(hosts=("*",), limits=Limits(seconds=0.1))).post("/api/boards/step", json={})
    assert answer.status_code == 503
    assert "no answer within" in answer.json()["detail"][0]["msg"]


def test_pages_of_other_hosts_are_not_answered_and_nothing_may_be_loaded_from_elsewhere():
    app = app_for()
    local = TestClient(app, base_url="http://localhost")
    assert local.get("/").status_code == 200
    assert TestClient(app, base_url="http://evil.example").get("/api/start").status_code == 400
    for path in ("/", "/workbench"):
        policy, *others = local.get(path).headers.get_list("content-security-policy")
        assert not others
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
    # The lecture has links to sources, and loads nothing from them.
    assert not re.findall(r'(?:src|<link[^>]+href)="http', local.get("/").text)
    for path in ("/workbench", "/docs", "/static/page.css"):
        text = CLIENT.get(path).text
        assert "https://" not in text
        assert "http://" not in text.replace("http://www.w3.org", "")


@each("path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/app.py", "/data/start.json"])
def test_no_file_is_had_by_its_name_but_those_of_the_page(path):
    assert CLIENT.get(path).status_code in (404, 405)


def test_the_documentation_names_every_board_with_its_inputs():
    schema = CLIENT.get("/openapi.json").json()
    for name in BOARDS:
        assert set(schema["paths"][f"/api/boards/{name}"]) == {"get", "post"}
    assert CLIENT.get("/docs").status_code == 200


def test_what_is_transferred_at_first_is_small():
    """The workbench with what it loads at once, compressed, is below 400 kB; its own code below 120 kB as it is."""
    names = ["/workbench", "/api/start", "/static/page.css"]
    own = [f"/static/{name}.js" for name in ("page", "inputs", "draw", "state")] + [
        f"/static/boards/{name}.js" for name in BOARDS
    ]
    vendored = ["/static/vendor/d3.min.js", "/static/vendor/plot.umd.min.js"]
    sent = 0
    for path in names + own + vendored:
        with CLIENT.stream("GET", path, headers={"accept-encoding": "gzip"}) as answer:
            sent += sum(len(part) for part in answer.iter_raw())
    assert sent < 400_000
    assert sum(len(CLIENT.get(path).content) for path in ["/workbench", "/static/page.css", *own]) < 120_000
    # The lecture is one answer.
    with CLIENT.stream("GET", "/", headers={"accept-encoding": "gzip"}) as answer:
        assert sum(len(part) for part in answer.iter_raw()) < 112_000


def test_a_slider_s_values_run_from_end_to_end():
    for board in load_boards().values():
        for one in described(board.inputs):
            if one["kind"] == "slider":
                values = along(one, 5)
                assert values[0] == pytest.approx(max(one["low"], 1e-9), rel=0.01, abs=1e-6)
                assert values[-1] == pytest.approx(one["high"], rel=0.01)
        assert next(grid(board)) == {
            **{name: Shared.model_fields[name].default for name in board.bar},
            **{one["name"]: one["default"] for one in described(board.inputs)},
        }


TEXTS = some.text(string.printable, max_size=40) | some.sampled_from(
    ["llama-3.1-8b", "hgx-h100", "{}", "a\nb", "../x", "ideal", "fp8", "∞"]
)
NUMBERS = some.integers(-(10**30), 10**30) | some.floats() | some.integers(0, 300)
ODD = some.recursive(
    some.none() | some.booleans() | NUMBERS | TEXTS,
    lambda each: some.lists(each, max_size=3) | some.dictionaries(TEXTS, each, max_size=3),
)


def fields(name):
    return [*load_boards()[name].inputs.model_fields]


def tried(name, names, draw_value, method):
    body = {one: draw_value() for one in names}
    if method == "GET":
        return CLIENT.get(f"/api/boards/{name}", params={k: str(v) for k, v in body.items()})
    text = json.dumps(body)  # with NaN and Infinity, as a careless program writes them
    return CLIENT.post(f"/api/boards/{name}", content=text, headers={"content-type": "application/json"})


def check(answer):
    assert answer.status_code in (200, 422, 400), (answer.status_code, answer.text[:300])
    if answer.status_code == 422:
        for detail in answer.json()["detail"]:
            assert isinstance(detail["msg"], str)
            assert len(detail["msg"]) < 2000


@pytest.mark.thorough
@examples(40)
@given(data=some.data())
def test_odd_bodies_and_queries_are_answered_or_refused(data):
    name = data.draw(some.sampled_from(BOARDS))
    names = data.draw(some.lists(some.sampled_from(fields(name)) | TEXTS, max_size=4, unique=True))
    check(tried(name, names, lambda: data.draw(ODD), data.draw(some.sampled_from(["POST", "GET"]))))


@pytest.mark.slow
@settings(max_examples=10_000)
@given(data=some.data())
def test_ten_thousand_odd_bodies_and_queries_are_answered_or_refused(data):
    name = data.draw(some.sampled_from(BOARDS))
    names = data.draw(some.lists(some.sampled_from(fields(name)) | TEXTS, max_size=4, unique=True))
    check(tried(name, names, lambda: data.draw(ODD), data.draw(some.sampled_from(["POST", "GET"]))))


@examples(60)
@given(raw=some.binary(max_size=200))
def test_bodies_that_are_no_json_are_refused(raw):
    check(CLIENT.post("/api/boards/step", content=raw, headers={"content-type": "application/json"}))


def test_ten_points_of_the_step_are_those_of_the_library():
    """The JSON of the page against calls of its own, to 1e-12."""
    # The page balances the experts: 256 and 32 copies on 72 chips.
    layout = st.Layout(dp=72, ep=72, redundant_experts=32)
    # As the engine keeps the cache of an 8-bit model.
    model = st.load_model("deepseek-ai/DeepSeek-V3", kv="fp8")
    for place, batch in zip(count(), (1, 3, 17, 64, 255, 256, 1000, 4096, 20000, 65536), strict=False):
        context = 1 + 977 * place
        data = asked("step", batch=batch, context=context).json()
        own = st.decode_step(model, "gb200-nvl72", batch=batch, context=context, layout=layout)
        assert data["marks"]["total"] == pytest.approx(float(own.total), rel=1e-12)
        at, table = 7 * place % 49, data["tables"]["steps"]
        own = st.decode_step(model, "gb200-nvl72", batch=table["batch"][at], context=context, layout=layout)
        assert table["total"][at] == pytest.approx(float(own.total), rel=1e-12)
        assert table["lower"][at] == pytest.approx(float(own.lower), rel=1e-12)
        assert table["compute"][at] == pytest.approx(float(own.resources["compute"]), rel=1e-12)


def test_the_page_about_the_page_names_each_board_with_its_question():
    text = (Path(__file__).parents[2] / "docs" / "web.md").read_text(encoding="utf-8")
    for board in load_boards().values():
        assert f"| `{board.name}` | {board.title} |" in text


def test_slow_boards_hold_up_each_other_alone(monkeypatch):
    """While plans are worked out, those that are too many are sent away, and a step is answered at once."""
    import time

    from steptime.web import board as module

    step = load_boards()["step"]
    slow = module.Board(
        name="slow", title="slow", order=1, section=1, inputs=step.inputs, slow=True,
        answer=lambda _: time.sleep(1.5) or step.answer(_),
    )  # fmt: skip
    monkeypatch.setattr("steptime.web.app.load_boards", lambda: {"slow": slow, "step": step})
    app = app_for(hosts=("*",), limits=Limits(queue=2))

    async def crowd():
        import httpx2

        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
            waiting = [asyncio.create_task(client.post("/api/boards/slow", json={"batch": n})) for n in range(1, 6)]
            await asyncio.sleep(0.1)
            quick = await client.post("/api/boards/step", json={"batch": 77})
            sooner = [task.result().status_code for task in waiting if task.done()]
            return quick.status_code, sooner, [answer.status_code for answer in await asyncio.gather(*waiting)]

    quick, sooner, statuses = asyncio.run(crowd())
    assert quick == 200
    assert 200 not in sooner  # no plan was ready yet
    assert sorted(statuses) == [200, 200, 503, 503, 503]
