"""A running server against its prediction: metrics, windows, drift, the exporter and the board."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import shutil
import socket
import subprocess
import time
import tracemalloc
import urllib.parse
import urllib.request
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from steptime.errors import InputError, RangeError
from steptime.validation.engine_metrics import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    fetch_text,
    is_restarted,
    metrics_url,
    parse_samples,
    read_scrape,
    window_between,
)
from steptime.validation.live_drift import QUANTITIES, DriftSums, Exporter, Watcher, watch_windows
from tests.cli.test_commands import run
from tests.conftest import each
from tests.validation.fake_engine import FakeEngine, serving

DEPLOYMENT = {"model": "llama-3.1-8b", "system": "hgx-h100", "weights": "bf16"}
OPTIONS = "--model llama-3.1-8b --system hgx-h100 --weights bf16"


def two_scrapes(engine: FakeEngine, seconds: float = 10.0):
    engine.run(5.0)
    first = read_scrape(engine.text(), 0.0)
    engine.run(seconds)
    return first, read_scrape(engine.text(), seconds)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_window_has_what_the_server_did(engine: str):
    window = window_between(*two_scrapes(FakeEngine(engine=engine)))
    assert (window.requests_per_second, window.output_tokens_per_second) == pytest.approx((4, 800))
    assert (window.tpot, window.ttft, window.queue) == pytest.approx((0.009, 0.1, 0.01))
    assert (window.input, window.output, window.cached_share) == pytest.approx((1000, 200, 0))
    # Little's law: 4 requests/s for 0.09 s and 199 gaps of 9 ms.
    assert window.in_flight == pytest.approx(4 * (0.09 + 199 * 0.009))
    assert window.kv_share == 0.3


def test_ranks_are_added_and_shares_are_averaged():
    text = "".join(
        f'vllm:prompt_tokens_total{{engine="{rank}",model_name="a"}} {100 * (rank + 1)}\n'
        f'vllm:generation_tokens_total{{engine="{rank}",model_name="a"}} 10\n'
        f'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="a"}} 0.{rank + 1}\n'
        for rank in range(2)
    )
    scrape = read_scrape(text, 0.0)
    assert (scrape.values["prompt_tokens"], scrape.values["generation_tokens"]) == (300, 20)
    assert scrape.values["kv_share"] == pytest.approx(0.15)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_samples_equal_those_of_prometheus_own_parser(engine: str):
    parser = pytest.importorskip("prometheus_client.parser")
    fake = FakeEngine(engine=engine, model='odd "name" \\ with, commas{}'.replace('"', r"\"").replace(r" \ ", r" \\ "))
    fake.run(3.0)
    text = fake.text()
    theirs = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            theirs.setdefault(sample.name, []).append(sample.value)
    ours = {name: [value for _, value in values] for name, values in parse_samples(text, theirs).items()}
    assert ours == theirs
    assert any(name.endswith("_bucket") for name in ours)


def test_older_names_are_read():
    old = FakeEngine().text().replace("inter_token_latency_seconds", "time_per_output_token_seconds")
    old = old.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
    assert read_scrape(old, 0.0).values["kv_share"] == 0.3
    assert "tpot" in read_scrape(old, 0.0).counts


def test_every_name_has_its_engine():
    for group in (COUNTERS, GAUGES, HISTOGRAMS):
        for engine, quantities in group.items():
            assert all(name.startswith(f"{engine}:") for names in quantities.values() for name in names)


def test_a_restart_is_seen():
    first, second = two_scrapes(FakeEngine())
    assert not is_restarted(first, second)
    assert is_restarted(second, first)
    assert is_restarted(first, replace(second, model="another"))


@each(
    "text, says",
    [
        ("<html>", "is no /metrics of vLLM or SGLang, but HTML"),
        ("go_goroutines 3\n", "a text without vllm: or sglang: metrics"),
        ("", "a text without vllm"),
        ('vllm:num_requests_running{model_name="a"} 1\n', "lacks vllm:prompt_tokens_total"),
        ('vllm:prompt_tokens_total{model_name="a"} 1\nvllm:prompt_tokens_total{model_name="b"} 1\n', "several models: a, b"),
        ('vllm:prompt_tokens_total{model_name="a"} x\n', "lacks vllm:prompt_tokens_total"),
    ],
)
def test_other_texts_are_refused_with_a_reason(text: str, says: str):
    with pytest.raises(InputError, match=says):
        read_scrape(text, 0.0)


def test_one_of_several_models_is_chosen():
    text = "".join(
        f'vllm:{name}_tokens_total{{model_name="{m}"}} {n}\n'
        for name in ("prompt", "generation")
        for m, n in (("a", 1), ("b", 2))
    )
    assert read_scrape(text, 0.0, "b").values["prompt_tokens"] == 2
    with pytest.raises(RangeError, match="the server has no model 'c'; it has a, b"):
        read_scrape(text, 0.0, "c")


# --- addresses and transfers ----------------------------------------------------------------------------------------------


@each("url", ["", "ftp://a", "http://", "http://a b", "http://[::1", "file:///etc/passwd", "http://a:99999"])
def test_addresses_of_another_kind_are_refused(url: str):
    with pytest.raises(InputError, match="URL: "):
        metrics_url(url)


def test_a_password_is_refused_and_not_repeated():
    with pytest.raises(InputError, match="leave the user and the password out") as error:
        metrics_url("http://me:secret@host")
    assert "secret" not in str(error.value)


def answered(status: int = 200, body: bytes = b"", **headers: str):
    def answer(handler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_redirects_stay_on_the_host():
    elsewhere = answered(302, Location="http://198.51.100.7/metrics")
    with serving(FakeEngine(), answer=elsewhere) as url, pytest.raises(InputError, match="redirects to another host"):
        fetch_text(f"{url}/metrics", timeout=2)


def test_a_redirect_within_the_host_is_followed():
    def answer(handler) -> None:
        if handler.path == "/metrics":
            answered(307, Location="/metrics/")(handler)
        else:
            answered(body=b"vllm:a 1\n")(handler)

    with serving(FakeEngine(), answer=answer) as url:
        assert fetch_text(f"{url}/metrics", timeout=2) == "vllm:a 1\n"


def test_a_long_text_is_cut_off():
    long = answered(body=b"x" * 300_000)
    with serving(FakeEngine(), answer=long) as url, pytest.raises(InputError, match="more than 100,000 bytes"):
        fetch_text(f"{url}/metrics", largest=100_000)


def test_a_slow_answer_ends_in_time():
    from threading import Event

    stop = Event()

    def drip(handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not stop.wait(0.05):
            handler.wfile.write(b"#\n")
            handler.wfile.flush()

    with serving(FakeEngine(), answer=drip) as url:
        with pytest.raises(InputError, match=r"no complete answer within 0\.3 s"):
            fetch_text(f"{url}/metrics", timeout=0.3)
        stop.set()


@pytest.mark.parametrize(
    ("answer", "says"),
    [(answered(404), "the server answered 404 'Not Found'; SGLang needs --enable-metrics"), (answered(500), "answered 500")],
)
def test_errors_of_http_are_named(answer, says: str):
    with serving(FakeEngine(), answer=answer) as url, pytest.raises(InputError, match=says):
        fetch_text(f"{url}/metrics", timeout=2)


def test_a_closed_port_is_named():
    with serving(FakeEngine()) as url:
        pass
    with pytest.raises(InputError, match="cannot be reached"):
        fetch_text(f"{url}/metrics", timeout=2)


# --- prediction and drift ---------------------------------------------------------------------------------------------------


def test_cost_is_rent_over_throughput():
    first, second = two_scrapes(FakeEngine())
    watched = Watcher(**DEPLOYMENT, tp=2, rent=3.6).compare(second, window_between(first, second))
    # Two chips at 3.6 USD/h, 800 tokens/s.
    assert (watched.chips, watched.usd_per_hour) == (2, pytest.approx(7.2))
    assert watched.usd_per_million_tokens.measured == pytest.approx(7.2 / 3600 / 800 * 1e6)
    assert watched.usd_per_million_tokens.low < watched.usd_per_million_tokens.predicted < watched.usd_per_million_tokens.high


def test_a_server_without_requests_has_no_comparison():
    first, second = two_scrapes(FakeEngine(rate=0.0))
    assert Watcher(**DEPLOYMENT).compare(second, window_between(first, second)).tpot is None


def test_a_server_as_predicted_has_not_drifted():
    engine = FakeEngine()
    watcher = Watcher(**DEPLOYMENT)
    first, second = two_scrapes(engine)
    watched = watcher.compare(second, window_between(first, second))
    as_predicted = replace(window_between(first, second), tpot=watched.tpot.predicted, ttft=watched.ttft.predicted)
    watched = watcher.compare(second, as_predicted)
    assert (watched.tpot.ratio, watched.ttft.ratio) == pytest.approx((1, 1))
    assert watched.drifted == ""


@pytest.mark.parametrize(("queue", "term"), [(2.9, "queue"), (0.0, "prefill")])
def test_a_late_first_token_is_of_the_queue_or_of_prefill(queue: float, term: str):
    first, second = two_scrapes(FakeEngine(ttft=3.0, queue=queue, tpot=0.008))
    watched = Watcher(**DEPLOYMENT).compare(second, window_between(first, second))
    assert watched.ttft.has_drifted
    assert watched.drifted == term


def test_sums_name_the_resource_by_least_squares():
    sums = DriftSums()
    for load in range(1, 7):
        sums.add(0.5 * load, {"kv": load, "weights": 4.0})
    name, factor, explained = sums.explain()
    assert (name, factor, explained) == ("kv", pytest.approx(1.5), pytest.approx(1.0))


def test_one_load_tells_no_resource():
    sums = DriftSums()
    for _ in range(20):
        sums.add(0.5, {"kv": 1.0, "weights": 4.0})
    assert sums.explain()[0] == "decode step"


@pytest.mark.thorough
def test_a_slower_kv_cache_is_named():
    """Windows at several loads, whose reads of the KV cache take three times as long as predicted."""
    watcher, probe = Watcher(**DEPLOYMENT), Watcher(**DEPLOYMENT)
    scrape, window = two_scrapes(FakeEngine())[1], window_between(*two_scrapes(FakeEngine()))
    for load in (4, 8, 16, 24, 32, 48, 64):
        at_load = replace(window, in_flight=float(load), input=4000.0)
        predicted = probe.compare(scrape, at_load).tpot.predicted
        kv = probe._predict(scrape, at_load)[1]["kv"]
        watched = watcher.compare(scrape, replace(at_load, tpot=predicted + 2 * kv))
    assert watched.tpot.has_drifted
    assert (watched.drifted, watched.factor) == ("kv", pytest.approx(3.0))
    assert watched.explained == pytest.approx(1.0)


# --- the command ------------------------------------------------------------------------------------------------------------


def test_once_prints_measured_against_predicted():
    with serving(FakeEngine(tpot=0.03), seconds_per_scrape=0.2) as url:
        result = run(f"watch {url} {OPTIONS} --once --interval 0.2 --json")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["schema"] == "steptime.watch/1"
    assert data["tpot_s"]["measured"] == pytest.approx(0.03)
    assert data["tpot_s"]["has_drifted"] is True
    assert data["drifted"] == "decode step"


def test_formats_are_those_of_the_config_unless_given():
    assert Watcher(model="gpt-oss-20b", system="hgx-h100").settings["experts"] == "mxfp4"
    assert Watcher(model="deepseek-v3", system="hgx-h200", tp=8).settings["weights"] == "fp8"
    assert Watcher(model="deepseek-v3", system="hgx-h200", tp=16, weights="bf16").settings.get("experts", "") == ""


def test_windows_print_a_line_of_json_each():
    with serving(FakeEngine(engine="sglang")) as url:
        result = run(f"watch {url} {OPTIONS} --windows 3 --interval 0.2 --json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["engine"] for line in lines] == ["sglang"] * 3


def test_text_names_the_load_and_what_drifted():
    with serving(FakeEngine(tpot=0.03), seconds_per_scrape=0.2) as url:
        text = run(f"watch {url} {OPTIONS} --once --interval 0.2").stdout
    assert "Drifted: decode step." in text
    assert re.search(r"TPOT\s+30\.0 ms", text)


@each(
    "words, says",
    [
        ("watch", "watch needs the URL of a server"),
        ("watch localhost:1 --model llama-3.1-8b", "watch needs --system of the server"),
        (f"watch localhost:1 {OPTIONS} --interval 0", "--interval must be at least 0.2"),
        (f"watch localhost:1 {OPTIONS} --exporter 70000", "--exporter must be a port"),
        (f"watch localhost:1 {OPTIONS} --once", "localhost:1/metrics: cannot be reached"),
        ("watch localhost:1 --model nonesuch --system hgx-h100 --weights bf16 --once", "nonesuch"),
        # Settings that the server cannot have are refused before its first scrape.
        (f"watch localhost:1 {OPTIONS} --tp 3 --once", "steptime: --tp 3 does not divide the 32 heads"),
        (
            "watch localhost:1 --model deepseek-v3 --system hgx-h100 --tp 8 --once",
            "deepseek-ai/DeepSeek-V3 does not fit: the weights need",
        ),
    ],
)
def test_wrong_input_is_one_message(words: str, says: str):
    result = run(words)
    assert result.returncode == 2
    assert says in " ".join(result.stderr.split())


# --- the exporter and the board -----------------------------------------------------------------------------------------------


@pytest.fixture
def exported() -> str:
    """Text of the exporter after a window."""
    pytest.importorskip("prometheus_client")
    exporter = Exporter()
    first, second = two_scrapes(FakeEngine(tpot=0.03))
    exporter.update(Watcher(**DEPLOYMENT).compare(second, window_between(first, second)))
    exporter.failed()
    server, thread = exporter.serve(0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=5) as answer:
            return answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_exporter_serves_measured_and_predicted(exported: str):
    samples = parse_samples(exported, {line.partition("{")[0].partition(" ")[0] for line in exported.splitlines()})
    tpot = {labels["basis"]: value for labels, value in samples["steptime_time_per_output_token_seconds"]}
    assert tpot["measured"] == pytest.approx(0.03)
    assert tpot["low"] < tpot["predicted"] < tpot["high"]
    assert samples["steptime_scrapes_total"][0][1] == 2
    assert samples["steptime_scrape_failures_total"][0][1] == 1
    (labels, rent) = samples["llm_total_hourly_cost"][0]
    assert (labels["cost_basis"], labels["model_name"], rent) == ("allocation", "llama-3.1-8b", pytest.approx(2.0))
    assert {labels["quantity"] for labels, _ in samples["steptime_drifted"]} == set(QUANTITIES)
    assert samples["steptime_drift_term"][0][0]["term"] == "decode step"


def test_names_follow_the_rules_of_prometheus(exported: str):
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", exported, re.MULTILINE))
    helped = set(re.findall(r"^# HELP (\S+) \S", exported, re.MULTILINE))
    assert set(types) == helped
    for name, kind in types.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert name.endswith(("_total", "_created")) == (kind == "counter") or name.endswith("_created")
        assert not re.search(r"_(ms|milliseconds|minutes|hours|kb|mb)(_|$)", name)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool of Debian's package prometheus is not installed")
def test_promtool_accepts_the_metrics(exported: str):
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=exported, capture_output=True, text=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_a_port_in_use_is_named():
    pytest.importorskip("prometheus_client")
    with serving(FakeEngine()) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(InputError, match=f"--exporter {port}: Address already in use"):
            Exporter().serve(port)


def test_the_board_shows_metrics_of_the_exporter(exported: str, tmp_path: Path):
    place = tmp_path / "board.json"
    assert run(f"watch --dashboard {place}").returncode == 0
    board = json.loads(place.read_text(encoding="utf-8"))
    assert place.read_text(encoding="utf-8") == files("steptime").joinpath("data/boards/watch.json").read_text(encoding="utf-8")
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    names = {name for text in expressions for name in re.findall(r"\b(?:steptime|llm)_\w+", text)}
    exported_names = set(re.findall(r"^# TYPE (\S+)", exported, re.MULTILINE))
    assert names <= exported_names
    assert {name for name in exported_names if name.startswith(("steptime_time", "llm_"))} <= names
    # What Grafana needs to load a board: ids that differ, places on its grid of 24 columns, a data source to choose.
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "model"]
    assert isinstance(board["schemaVersion"], int)


def lost(value, written, place: str = "") -> list[str]:
    """Return the places of a value that are not in another; that may have more keys."""
    if isinstance(value, dict):
        keys = value.keys() & written.keys()
        absent = [f"{place}.{key}" for key in value if key not in written]
        return absent + [found for key in keys for found in lost(value[key], written[key], f"{place}.{key}")]
    if isinstance(value, list) and len(value) == len(written):
        return [found for k in range(len(value)) for found in lost(value[k], written[k], f"{place}[{k}]")]
    return [] if value == written else [place]


@pytest.mark.slow
def test_the_board_holds_to_the_schema_of_grafana():
    """Grafana's own package reads the board, and writes it back without a loss."""
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    board = json.loads(files("steptime").joinpath("data/boards/watch.json").read_text(encoding="utf-8"))
    written = json.loads(JSONEncoder().encode(dashboard.Dashboard.from_json(board)))
    assert lost(board, written) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package prometheus is not installed")
def test_prometheus_answers_every_expression_of_the_board(tmp_path: Path):
    """A real Prometheus scrapes the exporter of a server that drifted, and each panel of the board gets series."""
    exporter = Exporter()
    first, second = two_scrapes(FakeEngine(tpot=0.03))
    exporter.update(Watcher(**DEPLOYMENT).compare(second, window_between(first, second)))
    server, thread = exporter.serve(0)
    target = json.dumps([{"job_name": "watch", "static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}]}])
    (tmp_path / "p.yml").write_text(f'{{"global": {{"scrape_interval": "1s"}}, "scrape_configs": {target}}}', encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    words = ["prometheus", "--config.file=p.yml", "--storage.tsdb.path=data", f"--web.listen-address={place}"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def series(expression: str) -> list[object]:
        query = urllib.parse.urlencode({"query": expression.replace("$model", ".*")})
        with urllib.request.urlopen(f"http://{place}/api/v1/query?{query}", timeout=5) as answer:
            return json.load(answer)["data"]["result"]

    def is_scraped() -> bool:
        with contextlib.suppress(OSError):
            return bool(series("steptime_engine_up"))
        return False

    try:
        deadline = time.monotonic() + 60
        while not is_scraped() and time.monotonic() < deadline:
            time.sleep(0.2)
        board = json.loads(files("steptime").joinpath("data/boards/watch.json").read_text(encoding="utf-8"))
        expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        assert [expression for expression in expressions if not series(expression)] == []
    finally:
        process.kill()
        process.wait()
        server.shutdown()
        server.server_close()
        thread.join()


FOREIGN = (
    "http/server.py",
    "email/utils.py",
    "fake_engine.py",
    "tracemalloc.py",
    "socketserver.py",
    "threading.py",
    "linecache.py",
)


@pytest.mark.slow
def test_memory_is_flat_over_ten_minutes_of_scrapes():
    """600 scrapes of a loopback server, whose second passes at once."""
    pytest.importorskip("prometheus_client")
    watcher, exporter, now = Watcher(**DEPLOYMENT), Exporter(), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    engine, sizes = FakeEngine(), []
    with serving(engine) as url:
        windows = watch_windows(metrics_url(url), watcher, interval=1.0, clock=lambda: now[0], sleep=sleep)
        for number, watched in zip(range(600), windows, strict=False):
            assert not isinstance(watched, InputError)
            exporter.update(watched)
            # The load changes, and so do the terms that drift.
            engine.rate, engine.tpot = 2 + number % 5, 0.008 + 0.002 * (number % 7)
            if number == 100:
                tracemalloc.start()
            if number in (200, 599):
                gc.collect()
                # What the server of the test allocates does not count.
                foreign = [tracemalloc.Filter(False, f"*{name}") for name in FOREIGN]
                statistics = tracemalloc.take_snapshot().filter_traces(foreign).statistics("filename")
                sizes.append(sum(statistic.size for statistic in statistics))
        tracemalloc.stop()
    # 400 windows take less than 10 kB.
    assert sizes[1] - sizes[0] < 10_000, sizes
    assert len(watcher.predictions) <= 256
    assert watched.window.seconds == pytest.approx(1.0)
