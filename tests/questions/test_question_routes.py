"""Requests to the routes of questions: ill-typed, hostile and unknown inputs are refused, and no file is opened."""

from __future__ import annotations

import itertools

import pytest
from fastapi.testclient import TestClient

from steptime.questions.registry import HOMES, find_question
from steptime.web.app import app_for
from tests.conftest import each

PAIR = {"model": "llama-3.1-8b", "system": "hgx-h100"}
BASE = {
    "step": PAIR,
    "roofline": PAIR,
    "reversible": PAIR,
    "laws": {"params": 10**9, "tokens": 10**11},
    "budget": {"match_quality": "8B@1T"},
}
HOSTILE = ("x", ["x"], {"a": 1}, True, -1, 1e308, "", "../../etc/passwd", "/etc/passwd", "1:2", "NaN", 3.5, "x" * 300, "a.toml")


@pytest.fixture(scope="module")
def client():
    with TestClient(app_for(), base_url="http://127.0.0.1") as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("name", BASE)
def test_question_with_a_hostile_input_is_answered_or_refused(client, name):
    for key, value in itertools.product(find_question(name).inputs, HOSTILE):
        response = client.post(f"/api/questions/{name}", json={**BASE[name], key: value})
        assert response.status_code in (200, 422), (key, value, response.text)


@pytest.mark.parametrize("field", ["model", "system", "engine"])
def test_entry_of_the_working_folder_is_not_opened(client, field, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("own", "llama-3.1-8b", "hgx-h100"):
        (tmp_path / name).write_text("not a config")
    assert client.post("/api/questions/step", json=PAIR).status_code == 200
    assert client.post("/api/questions/step", json={**PAIR, field: "own"}).status_code == 422
    assert client.post("/api/questions/step", json={**PAIR, field: str(tmp_path / "own")}).status_code == 422


def test_prefill_system_of_the_working_folder_is_not_opened(client, tmp_path, monkeypatch, closed_forms):
    monkeypatch.chdir(tmp_path)
    for name in ("own", "hgx-h100"):
        (tmp_path / name).write_text("not a system")
    pair = {**PAIR, "chips": 1, "prefill_chips": 1}
    assert client.post("/api/questions/plan", json={**pair, "prefill_system": "hgx-h100"}).status_code == 200
    for name in ("own", str(tmp_path / "own")):
        assert client.post("/api/questions/plan", json={**pair, "prefill_system": name}).status_code == 422


def test_files_are_no_inputs(client):
    assert client.post("/api/questions/step", json={**PAIR, "catalog": "/"}).status_code == 422
    assert "catalog" not in client.get("/api/questions").json()["step"]["inputs"]


def test_declarations_cover_every_question(client):
    assert set(client.get("/api/questions").json()) == set(HOMES)


@each("body", ["", "[1]", "{", "[" * 5000])
def test_body_that_is_no_object_is_refused(client, body):
    assert client.post("/api/questions/step", content=body, headers={"Content-Type": "application/json"}).status_code == 422


def test_unknown_question_is_refused(client):
    assert client.post("/api/questions/sleep", json={}).status_code == 422


def test_request_of_another_site_is_refused(client):
    response = client.post("/api/questions/step", json=PAIR, headers={"Sec-Fetch-Site": "cross-site"})
    assert response.status_code == 403
