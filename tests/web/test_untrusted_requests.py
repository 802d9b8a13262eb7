"""Requests from strangers: of other sites, for files of the server, with long texts, and work that was given up."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

from steptime.models.model_loading import load_config_fields
from steptime.web import board as boards
from steptime.web import page_subject
from steptime.web.app import app_for
from steptime.web.board import LONGEST, LONGEST_NAME, described, load_boards
from steptime.web.server import Limits
from tests.conftest import each

BOARDS = sorted(load_boards())
CLIENT = TestClient(app_for(), base_url="http://localhost:8421")
CROSS_SITE = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "http://evil.example"},
    {"origin": "http://localhost:3000"},
    {"origin": "http://localhost:8421.evil.example"},
    {"origin": "null"},
    {"origin": "http://["},
]


@pytest.mark.parametrize("headers", CROSS_SITE, ids=str)
@each("path", ["/api/start", "/api/boards/step"])
def test_request_of_another_site_is_refused(path, headers):
    assert CLIENT.get(path, headers=headers).status_code == 403
    if path != "/api/start":
        assert CLIENT.post(path, json={}, headers=headers).status_code == 403


@each("headers", [{}, {"sec-fetch-site": "none"}, {"sec-fetch-site": "same-origin", "origin": "http://localhost:8421"}])
def test_request_of_the_page_itself_or_of_a_program_is_answered(headers):
    assert CLIENT.get("/api/start", headers=headers).status_code == 200
    assert CLIENT.post("/api/boards/step", json={}, headers=headers).status_code == 200


def test_allowed_host_is_answered_behind_a_proxy_that_keeps_or_changes_the_host():
    app = app_for(hosts=("localhost", "lecture.example"))
    kept, changed = TestClient(app, base_url="http://lecture.example"), TestClient(app, base_url="http://localhost:8421")
    headers = {"origin": "https://lecture.example", "sec-fetch-site": "same-origin"}
    assert kept.post("/api/boards/step", json={}, headers=headers).status_code == 200
    assert changed.post("/api/boards/step", json={}, headers=headers).status_code == 200
    assert TestClient(app, base_url="http://evil.example").get("/api/start").status_code == 400


def test_path_with_a_slash_too_many_is_not_redirected_to_another_address():
    assert CLIENT.get("/docs/", follow_redirects=False).status_code == 404


def text_inputs(name):
    own = [one["name"] for one in described(load_boards()[name].inputs) if one["kind"] == "text"]
    return ["model", "system", "engine", *own]


@pytest.mark.slow
@pytest.mark.parametrize(("board", "field"), [(name, field) for name in BOARDS for field in text_inputs(name)])
def test_text_inputs_open_no_file_of_the_server(board, field, tmp_path, monkeypatch):
    """A path is refused at its field, or has no part in the answer; the file is not opened either way."""
    (tmp_path / "strange_x").mkdir()
    (tmp_path / "strange_x" / "config.json").write_text(
        json.dumps({**load_config_fields("llama-3.1-8b"), "num_hidden_layers": 3})
    )
    for name in ("strange_x.toml", "strange_x.csv"):
        (tmp_path / name).write_text("secret")
    monkeypatch.chdir(tmp_path)
    opened = []
    path_type = type(tmp_path)
    for method in ("open", "read_text", "read_bytes"):
        original = getattr(path_type, method)

        def noted(self, *args, _original=original, **more):
            opened.append(str(self))
            return _original(self, *args, **more)

        monkeypatch.setattr(path_type, method, noted)
    for place in (
        "strange_x",
        str(tmp_path / "strange_x"),
        "strange_x/config.json",
        "./strange_x",
        "strange_x.toml",
        "transformers:strange_x",
    ):
        body = {field: f"{place}@15T" if field == "quality" else place}
        answer = CLIENT.post(f"/api/boards/{board}", json=body)
        if answer.status_code == 200:
            assert field in ("model", "system", "engine")
            assert answer.json()["tables"] == CLIENT.post(f"/api/boards/{board}", json={}).json()["tables"]
        else:
            assert answer.status_code == 422
            assert answer.json()["detail"][0]["field"] == field
    assert not [path for path in opened if "strange_x" in path]


def test_name_of_the_catalogue_is_not_taken_from_the_working_folder(tmp_path, monkeypatch):
    before = CLIENT.post("/api/boards/step", json={"model": "gpt2", "system": "hgx-h100", "engine": "vllm"}).json()
    for cached in (page_subject._model, page_subject._system, page_subject.names):
        cached.cache_clear()
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps({**load_config_fields("gpt2"), "n_layer": 3}))
    for name in ("hgx-h100", "vllm"):
        (tmp_path / name).write_text("secret")
    monkeypatch.chdir(tmp_path)
    fresh = TestClient(app_for(), base_url="http://localhost:8421")
    after = fresh.post("/api/boards/step", json={"model": "gpt2", "system": "hgx-h100", "engine": "vllm"})
    assert after.status_code == 200
    assert after.json()["tables"] == before["tables"]


@pytest.mark.parametrize("field", ["model", "system"])
def test_long_name_is_refused_and_long_pasted_text_is_read(field):
    answer = CLIENT.post("/api/boards/step", json={field: "x" * (LONGEST_NAME + 1)})
    assert answer.status_code == 422
    assert answer.json()["detail"][0] == {
        "loc": ["body", field],
        "field": field,
        "msg": f"{field} must have at most 200 characters",
    }
    pasted = "{" + " " * LONGEST if field == "model" else "a = 1\n" + " " * LONGEST
    answer = CLIENT.post("/api/boards/step", json={field: pasted})
    assert answer.json()["detail"][0]["msg"] == f"{field} must have at most 100000 characters"
    answer = CLIENT.post("/api/boards/step", json={field: pasted[:LONGEST]})
    assert "pasted" in answer.json()["detail"][0]["msg"]


def test_work_that_was_given_up_keeps_its_place_until_it_ends(monkeypatch):
    import httpx2

    step, ended = load_boards()["step"], threading.Event()

    def answer(asked):
        if asked.batch == 1:
            ended.wait(20)
        return step.answer(asked)

    one = boards.Board(name="step", title="step", order=1, section=1, inputs=step.inputs, answer=answer)
    monkeypatch.setattr("steptime.web.app.load_boards", lambda: {"step": one})
    app = app_for(hosts=("*",), limits=Limits(workers=1, seconds=0.2, stuck=0.3))

    async def ask():
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
            statuses = [(await client.post("/api/boards/step", json={"batch": batch})).status_code for batch in (1, 2)]
            stuck = [app.state.is_stuck()]
            ended.set()
            await asyncio.sleep(0.2)
            statuses.append((await client.post("/api/boards/step", json={"batch": 2})).status_code)
            return statuses, [*stuck, app.state.is_stuck()]

    statuses, stuck = asyncio.run(ask())
    assert statuses == [503, 503, 200]
    assert stuck == [True, False]


def test_a_config_is_downloaded_for_users_of_this_machine_only(tmp_path, monkeypatch):
    from steptime.web import app as page

    asked = []
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')

    def fetch(name):
        asked.append(name)
        return tmp_path / "config.json" if name == "owner/model" else "any Hugging Face id works, but this one is gated"

    monkeypatch.setattr(page, "fetch", fetch)
    here = TestClient(app_for(), base_url="http://localhost:8421", client=("127.0.0.1", 1))
    assert here.post("/api/config", json={"name": "owner/model"}).json() == {"config": '{"model_type": "llama"}'}
    assert "gated" in here.post("/api/config", json={"name": "owner/gated"}).json()["detail"][0]["msg"]
    del asked[:]
    for name in ("/etc/passwd", "../x/y", "owner", "http://evil.example/x", "a/b/c", "", "owner/" + "x" * 300):
        assert here.post("/api/config", json={"name": name}).status_code == 422, name
    assert here.get("/api/config", params={"name": "owner/model"}).status_code == 405
    assert here.post("/api/config", json={"name": "owner/model"}, headers={"origin": "http://evil.example"}).status_code == 403
    elsewhere = TestClient(app_for(), base_url="http://localhost:8421", client=("192.0.2.7", 1))
    assert elsewhere.post("/api/config", json={"name": "owner/model"}).status_code == 403
    opened = TestClient(app_for(hosts=("localhost", "lecture.example")), base_url="http://localhost", client=("127.0.0.1", 1))
    assert opened.post("/api/config", json={"name": "owner/model"}).status_code in (404, 405)
    assert asked == []
