"""Requests to the page, changed: an answer or a closed connection, no traceback, and the server goes on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given

from fuzzing import changed_bytes, fuzz_settings
from shoal.clusters import QueueState
from shoal.views.web.api import DashboardData
from shoal.views.web.server import DashboardServer

REQUESTS = (
    b"GET /api/runs?since=0 HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nCookie: shoal=x\r\nX-Shoal-Key: KEY\r\n\r\n",
    b"GET /api/log?run=a%2Fb&from=-1&lines=99999999999 HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n",
    b"GET /static/../../etc/passwd HTTP/1.0\r\n\r\n",
    b'POST /api/cancel HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 13\r\nOrigin: null\r\n\r\n{"runs": [1]}',
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardServer]:
    home = tmp_path_factory.mktemp("home")
    made = DashboardServer(DashboardData(str(home), lambda environ, newer: QueueState({})))
    threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def ask(server: DashboardServer, request: bytes) -> bytes:
    port = server.server_address[1]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request.replace(b"PORT", str(port).encode()))
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except ConnectionResetError:
            pass  # It closed before it had read all.
    return answer


def test_no_request_breaks_the_page(server: DashboardServer, capfd: pytest.CaptureFixture[str]) -> None:
    @fuzz_settings
    @given(request=changed_bytes(*REQUESTS))
    def answers(request: bytes) -> None:
        answer = ask(server, request)
        status = answer.split(b" ")[1:2]
        assert status != [b"500"], answer
        assert b"root:" not in answer and b"Traceback" not in answer

    answers()
    assert ask(server, b"GET / HTTP/1.0\r\nHost: 127.0.0.1:PORT\r\n\r\n").startswith(b"HTTP/1.")
    shown = capfd.readouterr()
    assert "Traceback" not in shown.out + shown.err
