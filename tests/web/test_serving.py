"""The server and its watchdog: processes that freeze, spin or die, headers that do not come, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

pytest.importorskip("fastapi")

from steptime.web.server import answered_hosts, is_loopback, listening_socket

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux only")
SERVER = """
import re
from steptime.web import app
from steptime.web.board import Board, load_boards
from steptime.web.server import Limits, Patience

def frozen(inputs):
    # The matcher of regular expressions lets no other thread run.
    re.match("(a+)+$", "a" * 60 + "!")

def spinning(inputs):
    while True:
        pass

boards = dict(load_boards())
for name, answer in (("frozen", frozen), ("spinning", spinning)):
    boards[name] = Board(name=name, title=name, order=1, section=1, inputs=boards["step"].inputs, answer=answer)
app.load_boards = lambda: boards
# Nothing is computed ahead: of each server the lecture, and of each process that replaces another one its first answers.
app.served_page, app._warm = lambda: ("", ""), lambda: None
app.serve(
    "127.0.0.1", 0, browse=False, announce=lambda address: print(address, flush=True),
    patience=Patience(headers=0.6, idle=1, silence=1.5, restart=0.1), limits=Limits(seconds=0.3, stuck=1.0),
)
"""


class Server:
    """A server in a process of its own."""

    def __init__(self, folder):
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("http"), self.log.read_text()
        self.port = int(self.address.rstrip("/").rpartition(":")[2])

    def children(self):
        """Process ids of the workers with their states."""
        pid = self.process.pid
        found = {}
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            try:
                found[int(child)] = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
        return found

    def status(self, path):
        try:
            with urlopen(f"{self.address}{path}", timeout=15) as answer:
                return answer.status
        except HTTPError as error:
            return error.code
        except OSError:
            return 0

    def connect(self, data):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        connection.sendall(data)
        return connection


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("server"))
    yield running
    children = running.children()
    running.process.terminate()
    running.process.communicate(timeout=15)
    assert running.process.returncode == -signal.SIGTERM
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def wait_until(condition, seconds=20.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False


def is_whole(server, before):
    """Whether other processes than some before run, as many as before, and none is a zombie."""
    now = server.children()
    return len(now) == len(before) and set(now) != set(before) and "Z" not in now.values()


def test_worker_that_is_killed_is_reaped_and_replaced(server):
    before = server.children()
    os.kill(next(iter(before)), signal.SIGKILL)
    assert wait_until(lambda: is_whole(server, before))
    assert server.status("api/start") == 200
    assert "another takes its place" in server.log.read_text()


@pytest.mark.parametrize("board", ["frozen", pytest.param("spinning", marks=pytest.mark.thorough)])
def test_worker_with_work_that_never_ends_is_replaced(server, board):
    before = server.children()
    statuses = []
    request = threading.Thread(target=lambda: statuses.append(server.status(f"api/boards/{board}")))
    request.start()
    assert wait_until(lambda: is_whole(server, before))
    request.join(15)
    # The spinning one is given up in time; the frozen one lets nothing answer.
    assert statuses == [503 if board == "spinning" else 0]
    assert all(server.status("api/start") == 200 for _ in range(6))


@pytest.mark.parametrize("data", [b"", b"GET /api/start HTTP/1.1\r\nHost: local"])
def test_connection_without_whole_headers_is_closed(server, data):
    with server.connect(data) as connection:
        started = time.monotonic()
        assert connection.recv(100) == b""
        assert time.monotonic() - started < 5


def can_send(connection):
    """Whether a connection still takes a byte."""
    time.sleep(0.1)
    try:
        connection.sendall(b"x")
    except OSError:
        return False
    return True


def test_headers_that_come_byte_by_byte_are_given_up(server):
    with server.connect(b"GET / HTTP/1.1\r\nX: ") as connection:
        assert wait_until(lambda: not can_send(connection), 8)


def test_idle_connection_answers_again_and_is_closed_in_time(server):
    request = b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with server.connect(request) as connection:
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        time.sleep(0.3)
        connection.sendall(request)
        started = time.monotonic()
        while connection.recv(65_536):
            assert time.monotonic() - started < 8


@pytest.mark.thorough
def test_server_that_is_killed_leaves_no_worker(tmp_path):
    server = Server(tmp_path)
    children = server.children()
    assert children
    server.process.kill()
    server.process.communicate()
    assert wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), 10)


def test_hosts_of_an_open_address_are_those_of_this_machine_and_those_allowed():
    assert set(answered_hosts("0.0.0.0", ("lecture.example",))) == {"127.0.0.1", "localhost", "[::1]", "lecture.example"}
    assert "10.1.2.3" in answered_hosts("10.1.2.3", ())
    assert "*" not in answered_hosts("0.0.0.0", ())
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1")] == [True] * 3 + [False] * 2


def test_port_that_listens_already_is_passed_over():
    with listening_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5), listening_socket("127.0.0.1", port) as second:
            assert port < second.getsockname()[1] < port + 20
