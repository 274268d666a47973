"""A tiny completion server that misbehaves on order: what a client meets in the wild, without a model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Behaviour = Callable[[int], str]
"""From the number of a completion request (0, 1, …) to what becomes of it: ok, 401, 404, 503, hang, cut, garbage,
close, once (close unless it is the first of its connection), short (fewer tokens than asked for)."""

TOKEN_S = 0.0005


class FakeServer:
    """A server on a free port of 127.0.0.1, for the time of a `with`.

    Attributes:
        bodies: the completion requests it got, parsed.
        names: their X-Request-Id headers.
    """

    def __init__(
        self, behaviour: Behaviour = lambda number: "ok", *, models_status: int = 200, models: Any = None
    ) -> None:
        self.behaviour = behaviour
        self.models_status = models_status
        self.models = {"data": [{"id": "tiny", "max_model_len": 1024}]} if models is None else models
        self.bodies: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.counters = {"num_preemptions": 0, "prompt_tokens": 0, "generation_tokens": 0}
        self.lock = threading.Lock()
        self.released = threading.Event()
        fake = self

        class Handler(_Handler):
            server_state = fake

        self.http = _QuietServer(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self) -> Self:
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def metrics(self) -> str:
        lines = ["# HELP vllm:x text", 'vllm:num_requests_running{engine="0"} 0.0', "vllm:num_requests_waiting{} 0"]
        lines += [f'vllm:{name}_total{{engine="0"}} {value}' for name, value in self.counters.items()]
        lines.append('vllm:cache_config_info{block_size="16",enable_prefix_caching="True",num_gpu_blocks="99"} 1.0')
        return "\n".join(lines) + "\n"


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are no news."""


class _Handler(BaseHTTPRequestHandler):
    server_state: FakeServer
    num_posts = 0  # over this connection
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        state = self.server_state
        match self.path:
            case "/v1/models":
                text = state.models if isinstance(state.models, str) else json.dumps(state.models)
                self._answer(state.models_status, text)
            case "/version":
                self._answer(200, json.dumps({"version": "0.32.0"}))
            case "/metrics":
                self._answer(200, state.metrics())
            case "/health":
                self._answer(200, "")
            case _:
                self._answer(404, "not found")

    def do_POST(self) -> None:
        state = self.server_state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with state.lock:
            number = len(state.bodies)
            state.bodies.append(body)
            state.names.append(self.headers.get("X-Request-Id", ""))
        what = state.behaviour(number)
        self.num_posts += 1
        if what == "once":
            what = "ok" if self.num_posts == 1 else "close"
        if what.isdigit():
            self._answer(int(what), json.dumps({"error": {"message": f"refused with {what}"}}))
        elif what == "hang":
            state.released.wait(30)
            self.close_connection = True
        elif what == "close":
            self.close_connection = True
        else:
            try:
                self._stream(body, what)
            except OSError:  # the client has gone
                self.close_connection = True

    def _stream(self, body: dict[str, Any], what: str) -> None:
        self._count("prompt_tokens", len(body["prompt"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = body["max_tokens"] // 2 if what in ("cut", "short") else body["max_tokens"]
        for i in range(count):
            time.sleep(TOKEN_S)
            self._count("generation_tokens", 1)  # before the client sees it: a reading afterwards holds at least that
            choice: dict[str, Any] = {"text": f" t{i}", "finish_reason": None}
            if body.get("return_token_ids"):
                choice["token_ids"] = [7_000 + i]
            self._event(json.dumps({"choices": [choice]}))
        if what == "cut":
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        if what == "garbage":
            self._event('{"choices": [')
        self._event(json.dumps({"choices": [], "usage": {"completion_tokens": count}}))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _count(self, counter: str, number: int) -> None:
        with self.server_state.lock:
            self.server_state.counters[counter] += number

    def _event(self, data: str) -> None:
        payload = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(payload):x}\r\n".encode() + payload + b"\r\n")
        self.wfile.flush()

    def _answer(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
