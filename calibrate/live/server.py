"""Starts a real server, waits until it is ready, and stops it for certain."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from sim.errors import UserError

CPU_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""What the CPU build of vLLM wants: no downloads, 1 GiB of KV cache, threads where the system puts them."""

_POLL_S = 0.5
_STOP_S = 20.0
_TAIL_LINES = 15


class LiveServer:
    """A `vllm serve` process; a context manager that starts it, waits for `/health`, and stops it.

    Args:
        command: the command and its arguments.
        log: where its output goes; `server_log.py` reads it.
        base_url: where it will answer.
        environment: variables added to this process's own.
        start_timeout_s: how long it may take to be ready.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        base_url: str = "http://127.0.0.1:8000",
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 600.0,
    ) -> None:
        self.command = list(command)
        self.log = log
        self.base_url = base_url.rstrip("/")
        self.environment = dict(environment or {})
        self.start_timeout_s = start_timeout_s
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the process and waits until it answers `/health`.

        Raises:
            UserError: it cannot be started, ends by itself, or is not ready in time; with the end of its log.
        """
        if _answers(self.base_url):
            raise UserError(f"{self.base_url}: another server answers there already; stop it or choose another port")
        with self.log.open("wb") as log:
            try:
                self.process = subprocess.Popen(
                    self.command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **self.environment},
                    start_new_session=True,  # its workers stop with it, and Ctrl-C here does not reach it first
                )
            except OSError as error:
                raise UserError(f"{shlex.join(self.command[:2])}: cannot be started: {error.strerror}") from None
        deadline = time.monotonic() + self.start_timeout_s
        while not _answers(self.base_url):
            if self.process.poll() is not None:
                raise UserError(
                    f"the server ended with code {self.process.returncode} before it was ready:{self._tail()}"
                )
            if time.monotonic() > deadline:
                raise UserError(f"the server was not ready after {self.start_timeout_s:g} s:{self._tail()}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Ends the process and all it started: politely, then by force."""
        if self.process is None:
            return
        # Even when the front end is gone, its engine may be left in the group.
        for number, patience_s in ((signal.SIGTERM, _STOP_S), (signal.SIGKILL, _STOP_S)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=patience_s)
            if self.process.poll() is not None and self._group_ends(patience_s):
                break
        self.process = None

    def _group_ends(self, patience_s: float) -> bool:
        assert self.process is not None
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            try:
                os.killpg(self.process.pid, 0)
            except (ProcessLookupError, PermissionError):
                return True
            time.sleep(0.1)
        return False

    def _tail(self) -> str:
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            return f" its log ({self.log}) ends with:\n" + "\n".join(lines[-_TAIL_LINES:])
        return f" see {self.log}"


def recorded_command(command: Sequence[str]) -> list[str]:
    """Returns the command with the recorder's scheduler class, unless it names one of its own."""
    if any(word.split("=")[0] == "--scheduler-cls" for word in command):
        return list(command)
    return [*command, "--scheduler-cls", "calibrate.record.recording_scheduler"]


def url_of(command: Sequence[str]) -> str:
    """Returns where a `vllm serve` command will answer, from its --host and --port."""
    given = {"--host": "127.0.0.1", "--port": "8000"}
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, _, value = word.partition("=")
        if name in given:
            given[name] = value or following
    host = "127.0.0.1" if given["--host"] == "0.0.0.0" else given["--host"]
    return f"http://{host}:{given['--port']}"


def recording_environment(steps: Path) -> dict[str, str]:
    """Returns the variables with which a server loads the recorder from this checkout and writes to `steps`."""
    root = str(Path(__file__).resolve().parents[2])
    rest = os.environ.get("PYTHONPATH")
    return {
        "PYTHONPATH": root + os.pathsep + rest if rest else root,
        "HEADCOUNT_STEP_RECORD": str(steps.resolve()),
    }


def _answers(base_url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{base_url}/health", timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
