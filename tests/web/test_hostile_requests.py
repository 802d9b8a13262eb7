"""Two hundred hostile requests: none breaks the server, opens a foreign file, or is answered for a foreign site."""

from __future__ import annotations

import json
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

import steptime
from steptime.web.app import app_for

CLIENT = TestClient(app_for(), base_url="http://localhost:8421", raise_server_exceptions=False)
JSON = {"content-type": "application/json"}
FOREIGN = [
    {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://localhost.evil.example"},
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "https://localhost:1"},
    {"origin": "file://"}, {"host": "evil.example"}, {"host": "localhost.evil.example:8421"}, {"host": "0.0.0.0"},
]  # fmt: skip
PLACES = ["/", "/workbench", "/docs", "/openapi.json", "/api/start", "/api/questions", "/static/page.js", "/api/lecture/pair"]
TRAVERSALS = [
    "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/%2e%2e%2f%2e%2e%2fapp.py",
    "/static//etc/passwd",
    "/static/....//app.py", "/static/..%5capp.py", "/static/%00", "/static/boards/../../server.py", "/%2e%2e/%2e%2e/etc/passwd",
    "/api/../static/page.js", "/api/boards/../start", "/api/boards/step/../../start", "/static/boards", "/static/",
    "/.git/config", "/etc/passwd", "//evil.example/", "/\\evil.example", "/docs/../../x",
]  # fmt: skip
NAMES = [
    "/etc/passwd", "../../../etc/passwd", "file:///etc/passwd", "http://evil.example/x", "~/.ssh/id_rsa", "/proc/self/environ",
    "strange.toml", "transformers:/tmp", "\x00", "a" * 5000, "{{7*7}}", "$(id)", "<script>alert(1)</script>",
    "'; drop table x", "..",
    "C:\\windows\\win.ini", "CON", "\ud800", "%s%n", "owner/name",
]  # fmt: skip
BODIES = [
    b"", b"{", b"[]", b"null", b"1e999", b"NaN", b'"x"', b"{" * 50_000, b"[" * 50_000, b'{"batch": 1e400}', b'{"batch": NaN}',
    b'{"batch": ' + b"9" * 4000 + b"}", b'{"batch": {"a": 1}}', b'{"batch": [[[]]]}', b'{"batch": true}', b'{"batch": null}',
    b'{"__proto__": {"x": 1}}', b'{"model": {"model_type": "llama"}}', b'{"model": "{\\"num_hidden_layers\\": 1000000000}"}',
    b'{"model": "[[[[[[[[[["}', b'{"system": "a.b.c.d = 1"}', b'{"system": "chip = \'/etc/passwd\'"}', b'{"chips": -1}',
    b'{"context": 0}', b'{"batch": "1,5"}', b"\xff\xfe", b'{"batch": 1}' + b" " * 300_000, b"a=1&b=2",
    b"<xml/>", b'{"coarse": "yes"}',
]  # fmt: skip


def requests():
    """Yield hostile requests: method, path, headers and body, and whether a foreign site sends them."""
    for headers in FOREIGN:
        for place in PLACES:
            yield "GET", place, headers, None, place.startswith("/api") or "host" in headers
        yield "POST", "/api/boards/step", {**JSON, **headers}, b"{}", True
    for question in ("step", "plan", "prices", "nothing", "../step"):
        for name in ("/etc/passwd", "../x.toml", {"a": 1}, ["x"]):
            yield (
                "POST",
                f"/api/questions/{question}",
                JSON,
                json.dumps({"model": name, "trace": "/etc/passwd"}).encode(),
                False,
            )
    for path in TRAVERSALS:
        yield "GET", path, {}, None, False
    for name in NAMES:
        yield "POST", "/api/boards/step", JSON, json.dumps({"model": name}).encode(), False
        yield "GET", "/api/lecture/pair", {}, ("model", name), False
    for body in BODIES:
        yield "POST", "/api/boards/step", JSON, body, False
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "HEAD", "PROPFIND"):
        yield method, "/api/boards/step", {}, None, False
    for headers in (
        {"range": "bytes=0-1,2-3," * 200},
        {"if-none-match": "*" * 4000},
        {"content-length": "-1"},
        {"accept": "\t"},
    ):
        yield "GET", "/static/page.js", headers, None, False


EVERY = list(requests())


@pytest.fixture(scope="module")
def opened():
    """Paths that the process opens, by an audit hook, which stays for the whole process but notes nothing later."""
    paths: list[str] = []
    state = {"on": True}

    def hook(event, arguments):
        if state["on"] and event == "open" and isinstance(arguments[0], str | bytes):
            paths.append(arguments[0].decode(errors="replace") if isinstance(arguments[0], bytes) else arguments[0])

    sys.addaudithook(hook)
    yield paths
    state["on"] = False


def test_there_are_two_hundred():
    assert len(EVERY) >= 200


# Folders of the package, of Python and of its libraries, and the folder of temporary files.
KNOWN = tuple(
    str(Path(place).resolve())
    for place in (
        Path(steptime.__file__).parent, sys.prefix, sys.base_prefix, tempfile.gettempdir(), *sysconfig.get_paths().values()
    )
)  # fmt: skip


@pytest.mark.thorough
def test_none_breaks_the_server_opens_a_foreign_file_or_is_answered_for_a_foreign_site(opened):
    for method, path, headers, body, is_foreign in EVERY:
        del opened[:]
        pair = isinstance(body, tuple)
        names = {body[0]: body[1].encode("utf-8", "replace").decode(), "system": "hgx-h100"} if pair else None
        answer = CLIENT.request(
            method, path, headers=headers, params=names, content=None if pair else body, follow_redirects=False
        )
        said = (method, path, headers, str(body)[:80], answer.status_code)
        assert answer.status_code < 500, said
        # No redirect to, and no permission for, another site.
        to = answer.headers.get("location", "/")
        assert to.startswith("/"), said
        assert not to.startswith("//"), said
        assert not [name for name in answer.headers if name.startswith("access-control")], said
        assert "root:x:0" not in answer.text, said
        if is_foreign:
            assert answer.status_code in (400, 403), said
        known = (*KNOWN, "/dev", "/proc/self", "/etc/mime")
        wrong = [one for one in opened if one.startswith("/") and not str(Path(one).resolve()).startswith(known)]
        assert not wrong, (said, wrong)
        assert not [one for one in opened if "passwd" in one or "id_rsa" in one or "environ" in one], said
