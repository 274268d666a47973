"""A streaming client of an OpenAI-compatible server: one completion at a time, its tokens with the times they came.

Prompts go out as token ids to `/v1/completions`, so nothing depends on a tokenizer and every length is exact; the
server is asked to ignore the end-of-sequence token. aiohttp (the extra `live`) is imported here, lazily.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from calibrate.metrics_scrape import ServerMetrics, parse_metrics
from sim.errors import UserError

if TYPE_CHECKING:
    import aiohttp

_MOST_LINE_BYTES = 4 << 20
_CONNECT_S = 10.0
_SILENCE_S = 600.0  # nothing came for so long: the server hangs; no queue that anyone would measure is as long
_KEPT_ALIVE_S = 2.0  # servers close idle connections after 5 s; a request must not meet a closing one
_ANSWER_S = 30.0  # for everything but completions


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server to talk to.

    Attributes:
        base_url: without `/v1`.
        model: the name it is served under; empty: the only one there is.
        api_key: sent as a bearer token where given.
    """

    base_url: str
    model: str = ""
    api_key: str | None = None

    @classmethod
    def of(cls, base_url: str, model: str | None = None) -> Endpoint:
        """Returns an endpoint from what a person types; the key comes from OPENAI_API_KEY.

        Raises:
            UserError: the URL is none.
        """
        url = base_url.rstrip("/").removesuffix("/v1")
        if not url.startswith(("http://", "https://")):
            raise UserError(f"--base-url: got {base_url!r}; expected a URL such as http://127.0.0.1:8000")
        return cls(url, model or "", os.environ.get("OPENAI_API_KEY"))


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of a server: its name, its longest request and what it was loaded from, where the server tells."""

    name: str
    max_model_len: int | None = None
    root: str | None = None


class RequestError(Exception):
    """A completion failed.

    Attributes:
        status: the HTTP status, or None where there was no answer or a broken one.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Completion:
    """What came back for one request.

    Attributes:
        token_ns: when each token came, on the clock given.
        token_ids: the tokens, where the server was asked for them and told.
        num_tokens: as the server counts them at the end; None where it did not say.
        num_cached_tokens: prefix hit, where it said.
        num_closed: times it was sent over a connection that the server had closed before, and then sent again.
        closing_ns: when an event without text closed the answer: its last token, unless the count says otherwise.
    """

    token_ns: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    num_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_closed: int = 0
    closing_ns: int | None = None


class HttpClient:
    """Talks to one server over as many connections as there are requests in flight.

    Args:
        endpoint: the server.
        clock_ns: nanoseconds; tokens are stamped with it.
    """

    def __init__(self, endpoint: Endpoint, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.endpoint = endpoint
        self.clock_ns = clock_ns
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[HttpClient]:
        """Opens the session for the time of a `with`."""
        aiohttp = _aiohttp()
        headers = {"Authorization": f"Bearer {self.endpoint.api_key}"} if self.endpoint.api_key else {}
        # One connection a request, kept alive; no proxy is asked for a server beside this client.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_ALIVE_S)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
        reuse = aiohttp.TraceConfig()
        reuse.on_connection_reuseconn.append(_note_reuse)
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            headers=headers,
            read_bufsize=_MOST_LINE_BYTES,
            trace_configs=[reuse],
        ) as self._session:
            yield self

    async def find_model(self) -> ServedModel:
        """Returns the model to ask for: the endpoint's, when the server has it, or its only one.

        Raises:
            UserError: the server is down, refuses, does not have the model, or is no OpenAI-compatible server.
        """
        base_url, wanted = self.endpoint.base_url, self.endpoint.model
        try:
            status, text = await self.get("/v1/models")
        except RequestError as error:
            raise UserError(f"{base_url}: {error}") from None
        if status in (401, 403):
            raise UserError(f"{base_url}/v1/models: refused ({status}); set OPENAI_API_KEY to the server's key")
        try:
            data = json.loads(text)["data"] if status == 200 else []
            models = {
                str(model["id"]): ServedModel(str(model["id"]), model.get("max_model_len"), model.get("root"))
                for model in data
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            models = {}
        if not models:
            raise UserError(f"{base_url}/v1/models: not the models of an OpenAI-compatible server (status {status})")
        known = ", ".join(models)
        if wanted and wanted not in models:
            raise UserError(f"--model: {wanted!r} is not served at {base_url}; it has: {known}")
        if not wanted and len(models) > 1:
            raise UserError(f"--model: {base_url} serves several; choose one of: {known}")
        found = models[wanted] if wanted else next(iter(models.values()))
        self.endpoint = replace(self.endpoint, model=found.name)
        return found

    async def version(self) -> str | None:
        """Returns vLLM's release, or None where the server does not tell."""
        try:
            status, text = await self.get("/version")
            return str(json.loads(text)["version"]) if status == 200 else None
        except (RequestError, ValueError, KeyError, TypeError):
            return None

    async def metrics(self) -> ServerMetrics | None:
        """Returns what the server counts, or None where it does not tell."""
        try:
            status, text = await self.get("/metrics")
        except RequestError:
            return None
        metrics = parse_metrics(text) if status == 200 else None
        return metrics if metrics is not None and metrics.counters else None

    async def metrics_when_idle(self, patience_s: float = 20.0) -> ServerMetrics | None:
        """Returns the counters once nothing runs or waits any more: they lag behind the last answer a little."""
        deadline = time.monotonic() + patience_s
        while True:
            metrics = await self.metrics()
            if metrics is None or metrics.is_idle is not False or time.monotonic() > deadline:
                return metrics
            await asyncio.sleep(0.2)

    async def get(self, path: str) -> tuple[int, str]:
        """Returns the status and text of a page.

        Raises:
            RequestError: there was no answer.
        """
        aiohttp = _aiohttp()
        assert self._session is not None
        try:
            timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
            async with self._session.get(self.endpoint.base_url + path, timeout=timeout) as reply:
                return reply.status, await reply.text(errors="replace")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise RequestError(_plain(error)) from None

    async def complete(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        name: str,
        priority: int = 0,
        want_token_ids: bool = False,
        completion: Completion | None = None,
    ) -> Completion:
        """Sends one completion request and reads its stream to the end.

        Args:
            prompt: token ids.
            max_tokens: tokens to generate; the end of sequence is ignored.
            name: the request id, as the server will log it.
            priority: vLLM's; 0 is not sent.
            want_token_ids: ask for the generated token ids.
            completion: filled while tokens come, so that what came is not lost when the request fails.

        Raises:
            RequestError: no answer, an answer other than 200, or a stream that breaks off.
        """
        aiohttp = _aiohttp()
        completion = Completion() if completion is None else completion
        body = json.dumps(self._body(prompt, max_tokens, priority, want_token_ids))
        try:
            async with await self._posted(body, name, completion) as reply:
                if reply.status != 200:
                    raise RequestError(_error_text(reply.status, await reply.text(errors="replace")), reply.status)
                await self._read_stream(reply.content, completion)
        except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError, ValueError) as error:
            raise RequestError(_plain(error)) from None
        return completion

    async def _posted(self, body: str, name: str, completion: Completion) -> aiohttp.ClientResponse:
        """Sends a request and returns the reply that begins; again where an old connection turns out to be closed.

        A server closes a connection so long after its last answer. A client that was late to read that answer takes
        the connection for fresh, and its next request meets a closed door: the server never sees it.
        """
        aiohttp = _aiohttp()
        assert self._session is not None
        headers = {"Content-Type": "application/json", "X-Request-Id": name}
        url = self.endpoint.base_url + "/v1/completions"
        while True:
            seen: dict[str, bool] = {}
            try:
                return await self._session.post(url, data=body, headers=headers, trace_request_ctx=seen)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not seen.get("is_reused"):
                    raise
                completion.num_closed += 1

    def _body(self, prompt: Sequence[int], max_tokens: int, priority: int, want_token_ids: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if priority:
            body["priority"] = priority
        if want_token_ids:
            body["return_token_ids"] = True
        return body

    async def _read_stream(self, content: aiohttp.StreamReader, completion: Completion) -> None:
        """Reads server-sent events up to `[DONE]`."""
        async for line in content:
            if not line.startswith(b"data:"):
                continue
            now_ns = self.clock_ns()
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            try:
                self._take(json.loads(data), now_ns, completion)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise RequestError(f"an event of the stream cannot be read: {data[:80]!r}") from None
        raise RequestError(f"the stream broke off after {len(completion.token_ns)} tokens")

    @staticmethod
    def _take(event: dict[str, Any], now_ns: int, completion: Completion) -> None:
        if "error" in event:
            raise RequestError(f"the server reports: {str(event['error'])[:200]}")
        for choice in event.get("choices", ()):
            ids = choice.get("token_ids") or ()
            if not ids and not choice.get("text") and choice.get("finish_reason"):
                completion.closing_ns = now_ns
                continue
            # Tokens that come in one event came at one time; an event without ids is one token, as vLLM sends them.
            completion.token_ns += [now_ns] * (len(ids) or 1)
            completion.token_ids += ids
        if usage := event.get("usage"):
            completion.num_tokens = usage.get("completion_tokens")
            details = usage.get("prompt_tokens_details") or {}
            completion.num_cached_tokens = details.get("cached_tokens")
            if completion.closing_ns is not None and completion.num_tokens == len(completion.token_ns) + 1:
                completion.token_ns.append(completion.closing_ns)


async def _note_reuse(_session: aiohttp.ClientSession, trace: Any, _: Any) -> None:
    """Notes in a request's own context that it goes over a connection that was used before."""
    if trace.trace_request_ctx is not None:
        trace.trace_request_ctx["is_reused"] = True


def _aiohttp() -> Any:
    try:
        import aiohttp
    except ImportError:
        raise UserError("talking to a live server needs aiohttp: pip install 'headcount[live]'") from None
    return aiohttp


def _error_text(status: int, text: str) -> str:
    """Returns a server's own words on why it refused."""
    try:
        value = json.loads(text)
        error = value.get("error", value) if isinstance(value, dict) else value
        words = error.get("message", error) if isinstance(error, dict) else error
    except ValueError:
        words = text
    return f"status {status}: {' '.join(str(words).split())[:200]}"


def _plain(error: BaseException) -> str:
    """Returns a connection's error in words."""
    aiohttp = _aiohttp()
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no server answers there ({error.os_error.strerror or error.os_error})"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | ConnectionError):
        return "the server closed the connection"
    return f"{type(error).__name__}: {error}"
