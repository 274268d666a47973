"""Keys that do not go together are one exact line, at the key to change."""

from __future__ import annotations

import pytest

from .texts import CLOSED, OPEN, TRACE, case, lines_for


@pytest.mark.parametrize(
    ("text", "line"),
    [
        case(
            "budget below the running requests",
            "max_num_seqs: 64",
            "max_num_seqs: 64\n    max_num_batched_tokens: 32",
            "s.yaml:8:29: server.flags.max_num_batched_tokens: must be at least max_num_seqs, or running requests "
            "could not all advance; got 32; max_num_seqs is 64",
        ),
        case(
            "budget below the context without chunked prefill",
            "max_num_seqs: 64",
            "max_num_batched_tokens: 2048\n    enable_chunked_prefill: false",
            "s.yaml:7:29: server.flags.max_num_batched_tokens: must be at least max_model_len when "
            "enable_chunked_prefill is false; got 2048; max_model_len is 32768",
        ),
        case(
            "a replica that is not there fails",
            "max_num_seqs: 64",
            "max_num_seqs: 64\n  replicas: 2\n  failures: [{after: 1min, replica: 2}]",
            "s.yaml:9:37: server.failures.0.replica: replicas are counted from 0 to 1; got 2",
        ),
        case(
            "a slow GPU of a replica that is not there",
            "max_num_seqs: 64",
            "max_num_seqs: 64\n  slow_gpus: [{factor: 1.5, replica: 1}]",
            "s.yaml:8:38: server.slow_gpus.0.replica: replicas are counted from 0 to 0; got 1",
        ),
        case(
            "a slow GPU that recovers before it is slow",
            "max_num_seqs: 64",
            "max_num_seqs: 64\n  slow_gpus: [{factor: 1.5, after: 2min, until: 1min}]",
            "s.yaml:8:49: server.slow_gpus.0.until: must lie after its beginning; got 1min; after is 2min",
        ),
        case(
            "a failure that is noticed when it is over",
            "max_num_seqs: 64",
            "max_num_seqs: 64\n  failures: [{after: 1min, restart: 5s, noticed_after: 10s}]",
            "s.yaml:8:56: server.failures.0.noticed_after: a replica is noticed before it is back; got 10s; "
            "restart is 5s",
        ),
        case(
            "more replicas than the autoscaler may have",
            "max_num_seqs: 64",
            "max_num_seqs: 64\n  replicas: 5\n  autoscaling: {max: 4, target: 3, start_up: 1min}",
            "s.yaml:8:13: server.replicas: the start lies outside the limits; got 5; autoscaling allows 1 to 4",
        ),
        case(
            "the autoscaler's limits crossed",
            "max_num_seqs: 64",
            "max_num_seqs: 64\n  autoscaling: {min: 5, max: 4, target: 3, start_up: 1min}",
            "s.yaml:8:22: server.autoscaling.min: must not exceed max; got 5; max is 4",
        ),
        case(
            "a cache fuller than full",
            "max_num_seqs: 64",
            "max_num_seqs: 64\n  autoscaling: {max: 4, metric: kv, target: 80, start_up: 1min}",
            "s.yaml:8:45: server.autoscaling.target: a share of the KV cache is at most 1; got 80",
        ),
        case(
            "replicas of a server that is not vLLM",
            "max_num_seqs: 64",
            "max_num_seqs: 64\n  replicas: 2\n  kind: ollama",
            "s.yaml:8:13: server.replicas: several replicas are simulated of kind vllm only; got kind ollama",
        ),
        case(
            "threshold above the context",
            "max_num_seqs: 64",
            "long_prefill_token_threshold: 40000",
            "s.yaml:7:35: server.flags.long_prefill_token_threshold: must not exceed max_model_len; got 40000; "
            "max_model_len is 32768",
        ),
        case(
            "a class that can never fit",
            "{lognormal: {median: 250, p95: 2000}}",
            "{uniform: {low: 32000, high: 40000}}",
            "s.yaml:11:7: workload.classes.0: no request of class 'chat' can ever fit: its shortest prompt has 32800 "
            "tokens and needs room for one more; max_model_len is 32768",
        ),
        case(
            "max_tokens that can never fit",
            "output_tokens: 220",
            "output_tokens: 220\n      max_tokens: 40000",
            "s.yaml:17:19: workload.classes.0.max_tokens: every request would be refused; got 40000; "
            "max_model_len is 32768",
        ),
        case(
            "a context limit below the first prompt",
            "output_tokens: 220",
            "output_tokens: 220\n      context_limit_tokens: 500",
            "s.yaml:17:29: workload.classes.0.context_limit_tokens: below the shortest first prompt (800 tokens); "
            "got 500",
        ),
        case(
            "shares that are all zero",
            "share: 0.9",
            "share: 0",
            "s.yaml:11:5: workload.classes: every share is 0; at least one class needs a share above 0",
        ),
        case(
            "two classes of one name",
            "    - {name: all, prompt_tokens: 400, output_tokens: 180}",
            "    - {name: all, prompt_tokens: 400, output_tokens: 180}\n"
            "    - {name: all, prompt_tokens: 1, output_tokens: 1}",
            "s.yaml:9:14: workload.classes.1.name: duplicate class name; got 'all', also the name of class 0",
            OPEN,
        ),
        case(
            "no answer",
            "output_tokens: 180",
            "output_tokens: 0",
            "s.yaml:8:54: workload.classes.0.output_tokens: an answer has at least 1 token; got 0",
            OPEN,
        ),
        case(
            "no prompt",
            "prompt_tokens: 400",
            "prompt_tokens: 0",
            "s.yaml:8:34: workload.classes.0.prompt_tokens: a prompt has at least 1 token; got 0",
            OPEN,
        ),
        case(
            "no turns",
            "{geometric: {mean: 8, max: 40}}",
            "0",
            "s.yaml:17:14: workload.classes.0.turns: a conversation has at least 1 turn; got 0",
        ),
        case(
            "no users",
            "search:\n  vary: users\n  from: 1\n  to: 400\n",
            "",
            "s.yaml:9:3: workload.users: missing key; give the number of users, or let the search vary it",
        ),
        case(
            "no rate",
            "  request_rate: 5\n",
            "",
            "s.yaml:4:3: workload.request_rate: missing key; give requests per second, or let the search vary it",
            OPEN,
        ),
        case(
            "no number of requests",
            "request_rate: 5",
            "request_rate: inf",
            "s.yaml:4:3: workload.num_requests: missing key; requests that arrive all at once need a number",
            OPEN,
        ),
        case(
            "more requests in the time of a run than can be simulated",
            "request_rate: 5",
            "request_rate: 100000",
            "s.yaml:5:17: workload.request_rate: 100000 requests/s in 10min are 6e+07 requests; at most 10000000 are "
            "simulated: a lower rate, or a shorter run.duration",
            OPEN,
        ),
        case(
            "more requests than there are numbers",
            "request_rate: 5",
            "request_rate: 1.0e+308",
            "s.yaml:5:17: workload.request_rate: 1e+308 requests/s in 10min are inf requests; at most 10000000 are "
            "simulated: a lower rate, or a shorter run.duration",
            OPEN,
        ),
        case(
            "a search among more users than can be simulated",
            "to: 400",
            "to: 2000000",
            "s.yaml:26:7: search.to: must be at most 1000000 users; got 2000000",
        ),
        case(
            "no end",
            "run: {duration: 10min}",
            "run: {seeds: 1}",
            "s.yaml:9:6: run.duration: missing key; this workload never ends by itself; give a time, for example 30min",
            OPEN,
        ),
        case(
            "all of the run is warm-up",
            "warm_up: 5min",
            "warm_up: 30min",
            "s.yaml:29:12: run.warm_up: must be shorter than run.duration; got 30min; run.duration is 30min",
        ),
        case(
            "a run of years",
            "duration: 30min",
            "duration: 1000d",
            "s.yaml:28:13: run.duration: must be at most 366d; got 1000d",
        ),
        case(
            "all of the run is ramp-up",
            "client_timeout: 120s",
            "ramp_up: 1h",
            "s.yaml:19:12: workload.ramp_up: must be shorter than run.duration; got 1h; run.duration is 30min",
        ),
        case(
            "peaks without a calm",
            "request_rate: 5",
            "request_rate: 5\n  peaks: {factor: 3, duration: 10min, every: 600s}",
            "s.yaml:6:32: workload.peaks.duration: a peak must end before the next begins; got 10min; every is 10min",
            OPEN,
        ),
        case(
            "rates out of order",
            "request_rate: 5",
            "request_rate: 5\n  rate_over_time: [{after: 2min, factor: 2}, {after: 1min, factor: 1}]",
            "s.yaml:6:54: workload.rate_over_time.1.after: changes must be in order of time; got 1min after 2min",
            OPEN,
        ),
        case(
            "a search from above",
            "from: 1",
            "from: 500",
            "s.yaml:25:9: search.from: must not exceed search.to; got 500; search.to is 400",
        ),
        case(
            "half a user",
            "from: 1",
            "from: 1.5",
            "s.yaml:25:9: search.from: users are counted in whole numbers; got 1.5",
        ),
        case(
            "a search for what the workload has not",
            "vary: users",
            "vary: request_rate",
            "s.yaml:24:9: search.vary: a workload of kind users has no such quantity; got 'request_rate'; "
            "allowed: users, context_tokens",
        ),
        case(
            "a context below the shared prefix",
            "vary: users",
            "vary: context_tokens",
            "s.yaml:25:9: search.from: must exceed the shared prefix (800 tokens); got 1",
        ),
        case(
            "a search without an objective",
            "objectives:\n  - ttft.p95 <= 2s\n  - errors <= 0.1%\n",
            "",
            "s.yaml:1:1: objectives: missing key; a search needs at least one objective, for example 'ttft.p95 <= 2s'",
        ),
        case(
            "an endless session",
            "client_timeout: 120s",
            "session: {length: 0s, pause: 1h}",
            "s.yaml:19:21: workload.session.length: a session must last longer than 0",
        ),
        case(
            "a file that is not there",
            "{uniform_ratio: {mean: 1024, ratio: 0.5}}",
            "{empirical: {file: lengths.txt}}",
            "s.yaml:8:56: workload.classes.0.prompt_tokens.empirical.file: no such file; got 'lengths.txt' "
            "(looked for lengths.txt)",
            CLOSED,
        ),
        case(
            "a trace that is not there",
            "path: requests.jsonl",
            "path: gone.jsonl",
            "s.yaml:5:9: workload.path: no such file; got 'gone.jsonl' (looked for gone.jsonl)",
            TRACE,
        ),
    ],
)
def test_one_line_says_what_does_not_go_together(text: str, line: str) -> None:
    lines = lines_for(text)
    if "vary: context_tokens" in text:  # the number of users is then missing too
        lines = [given for given in lines if "workload.users" not in given]
    assert lines == [line]
