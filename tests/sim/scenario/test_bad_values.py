"""A value that cannot be used is one exact line: file, line, column, key, what is wrong, what was given, the cure."""

from __future__ import annotations

import pytest

from .texts import CLOSED, OPEN, USERS, case, edited, lines_for

KEYS = "keys: name, description, server, workload, objectives, search, run, active_share, variants"
UNITS = "units: us, ms, s, min, h, d (for example 45s)"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        case(
            "unknown key with a near one",
            "max_num_seqs",
            "max_num_seq",
            "s.yaml:7:5: server.flags.max_num_seq: unknown key; did you mean 'max_num_seqs'?",
        ),
        case(
            "unknown key with dashes",
            "max_num_seqs",
            "max-num-seqs",
            "s.yaml:7:5: server.flags.max-num-seqs: unknown key; did you mean 'max_num_seqs'?",
        ),
        case(
            "a flag beside the flags",
            "  gpu: rtx-4090",
            "  gpu: rtx-4090\n  max_num_seqs: 4",
            "s.yaml:5:3: server.max_num_seqs: unknown key; did you mean 'flags.max_num_seqs'?",
        ),
        case(
            "unknown key with no near one",
            "run:",
            "zzz: 1\nrun:",
            f"s.yaml:27:1: zzz: unknown key; {KEYS}",
        ),
        case(
            "unknown key within a distribution",
            "p95: 2000",
            "p95: 2000, p9: 1",
            "s.yaml:14:65: workload.classes.0.first_prompt_tokens.lognormal.p9: unknown key; did you mean 'p95'?",
        ),
        case(
            "unknown key with an empty value",
            "max_num_seqs: 64",
            "max_num_seq:",
            "s.yaml:7:5: server.flags.max_num_seq: unknown key; did you mean 'max_num_seqs'?",
        ),
        case(
            "missing key",
            "  gpu: rtx-4090\n",
            "",
            "s.yaml:2:1: server.gpu: missing key (a GPU of the built-in table: rtx-4090, h100, …)",
        ),
        case(
            "missing key at the top",
            "name: team\n",
            "",
            "s.yaml:1:1: name: missing key (name in reports and of the output folder)",
        ),
        case(
            "required key without a value",
            "gpu: rtx-4090",
            "gpu:",
            "s.yaml:4:3: server.gpu: missing key (a GPU of the built-in table: rtx-4090, h100, …)",
        ),
        case(
            "duplicate key",
            "  warm_up: 5min",
            "  duration: 5min",
            "s.yaml:29:3: run.duration: duplicate key; first given in line 28",
        ),
        case(
            "text for a number",
            "max_num_seqs: 64",
            "max_num_seqs: many",
            "s.yaml:7:19: server.flags.max_num_seqs: expected a whole number; got 'many'",
        ),
        case(
            "a number in quotes",
            "max_num_seqs: 64",
            "max_num_seqs: '64'",
            "s.yaml:7:19: server.flags.max_num_seqs: expected a whole number; got '64'; remove the quotes",
        ),
        case(
            "a fraction for a whole number",
            "max_num_seqs: 64",
            "max_num_seqs: 64.5",
            "s.yaml:7:19: server.flags.max_num_seqs: expected a whole number; got 64.5",
        ),
        case(
            "true for a number",
            "max_num_seqs: 64",
            "max_num_seqs: true",
            "s.yaml:7:19: server.flags.max_num_seqs: expected a whole number; got true",
        ),
        case(
            "YAML 1.1's yes",
            "max_num_seqs: 64",
            "enforce_eager: yes",
            "s.yaml:7:20: server.flags.enforce_eager: expected true or false; got 'yes'; write true",
        ),
        case(
            "a number for text",
            "name: team",
            "name: 7",
            "s.yaml:1:7: name: expected text; got 7; put it in quotes",
        ),
        case(
            "a version without quotes",
            "  gpu: rtx-4090",
            "  gpu: rtx-4090\n  version: 0.30",
            's.yaml:5:12: server.version: a version is text (0.30 is not 0.3); got 0.3; put it in quotes, as in "0.32"',
        ),
        case(
            "not a version",
            "  gpu: rtx-4090",
            "  gpu: rtx-4090\n  version: latest",
            's.yaml:5:12: server.version: not a version; got \'latest\'; write it as "0.32" or "0.8.5"',
        ),
        case(
            "an unknown engine",
            "  gpu: rtx-4090",
            "  gpu: rtx-4090\n  kind: tgi",
            "s.yaml:5:9: server.kind: unknown value; got 'tgi'; allowed: vllm, ollama, static",
        ),
        case(
            "a value out of range",
            "max_num_seqs: 64",
            "gpu_memory_utilization: 90",
            "s.yaml:7:29: server.flags.gpu_memory_utilization: must be at most 1; got 90",
        ),
        case(
            "more users than can be simulated",
            "client_timeout: 120s",
            "client_timeout: 120s\n  users: 999999999",
            "s.yaml:20:10: workload.users: must be at most 1000000; got 999999999",
        ),
        case(
            "more replicas than can be simulated",
            "  gpu: rtx-4090",
            "  gpu: rtx-4090\n  replicas: 100000000",
            "s.yaml:5:13: server.replicas: must be at most 4096; got 100000000",
        ),
        case(
            "more repetitions than can be simulated",
            "warm_up: 5min",
            "warm_up: 5min\n  seeds: 100000000",
            "s.yaml:30:10: run.seeds: must be at most 10000; got 100000000",
        ),
        case(
            "more requests than can be simulated",
            "num_requests: 100",
            "num_requests: 1000000000",
            "s.yaml:5:17: workload.num_requests: must be at most 10000000; got 1000000000",
            CLOSED,
        ),
        case(
            "zero where more is needed",
            "max_num_seqs: 64",
            "max_num_seqs: 0",
            "s.yaml:7:19: server.flags.max_num_seqs: must be above 0; got 0",
        ),
        case(
            "not a number",
            "share: 0.9",
            "share: .nan",
            "s.yaml:12:14: workload.classes.0.share: expected a finite number; got nan",
        ),
        case(
            "unknown value",
            "scope: all",
            "scope: everyone",
            "s.yaml:13:43: workload.classes.0.shared_prefix.scope: unknown value; got 'everyone'; "
            "allowed: all, team, user, none",
        ),
        case(
            "unknown value with a near one",
            "vary: users",
            "vary: user",
            "s.yaml:24:9: search.vary: unknown value; got 'user'; did you mean 'users'?",
        ),
        case(
            "a scalar for a mapping",
            "run:\n  duration: 30min\n  warm_up: 5min",
            "run: 30min",
            "s.yaml:27:6: run: expected a mapping; got '30min'",
        ),
        case(
            "a scalar for a list",
            "objectives:\n  - ttft.p95 <= 2s\n  - errors <= 0.1%",
            "objectives: ttft.p95 <= 2s",
            "s.yaml:20:13: objectives: expected a list; got 'ttft.p95 <= 2s'",
        ),
        case(
            "an empty list",
            "  classes:\n    - {name: all, prompt_tokens: 400, output_tokens: 180}",
            "  classes: []",
            "s.yaml:7:12: workload.classes: the list must not be empty",
            OPEN,
        ),
        case(
            "a duration without a unit",
            "client_timeout: 120s",
            "client_timeout: 120",
            f"s.yaml:19:19: workload.client_timeout: a duration needs a unit; got 120; {UNITS}",
        ),
        case(
            "a duration with a unit spelled out",
            "client_timeout: 120s",
            "client_timeout: 2 minutes",
            "s.yaml:19:19: workload.client_timeout: unknown unit 'minutes'; got '2 minutes'; did you mean '2min'?",
        ),
        case(
            "a duration with a unit of something else",
            "client_timeout: 120s",
            "client_timeout: 120GiB",
            f"s.yaml:19:19: workload.client_timeout: unknown unit 'GiB'; got '120GiB'; {UNITS}",
        ),
        case(
            "a duration that is no number",
            "client_timeout: 120s",
            "client_timeout: long",
            f"s.yaml:19:19: workload.client_timeout: a duration is a number with a unit; got 'long'; {UNITS}",
        ),
        case(
            "a negative duration",
            "client_timeout: 120s",
            "client_timeout: -5s",
            "s.yaml:19:19: workload.client_timeout: a duration cannot be negative; got '-5s'",
        ),
        case(
            "a duration within a distribution",
            "median: 45s",
            "median: 45",
            f"s.yaml:18:40: workload.classes.0.think_time.lognormal.median: a duration needs a unit; got 45; {UNITS}",
        ),
        case(
            "a unit where there is none",
            "output_tokens: 220",
            "output_tokens: 220s",
            "s.yaml:16:22: workload.classes.0.output_tokens: expected a number or a kind such as "
            "{lognormal: {median: 250, p95: 2000}}; got '220s'",
        ),
        case(
            "unknown distribution",
            "{geometric:",
            "{geometrical:",
            "s.yaml:17:15: workload.classes.0.turns.geometrical: unknown kind; did you mean 'geometric'?",
        ),
        case(
            "two kinds at once",
            "{geometric: {mean: 8, max: 40}}",
            "{geometric: {mean: 8, max: 40}, fixed: 3}",
            "s.yaml:17:26: workload.classes.0.turns.geometric: takes one kind; got geometric, fixed",
        ),
        case(
            "a kind without its mapping",
            "{geometric: {mean: 8, max: 40}}",
            "{geometric: 8}",
            "s.yaml:17:26: workload.classes.0.turns.geometric: geometric takes a mapping of mean, max; got 8",
        ),
        case(
            "a p95 below the median",
            "p95: 2000",
            "p95: 200",
            "s.yaml:14:40: workload.classes.0.first_prompt_tokens.lognormal: p95 must not be below the median; "
            "got median 250, p95 200",
        ),
        case(
            "a low above the high",
            "next_prompt_tokens: 60",
            "next_prompt_tokens: {uniform: {low: 9, high: 3}}",
            "s.yaml:15:37: workload.classes.0.next_prompt_tokens.uniform: low must not exceed high; got low 9, high 3",
        ),
        case(
            "unknown workload",
            "kind: users",
            "kind: user",
            "s.yaml:9:9: workload.kind: unknown kind; got 'user'; did you mean 'users'?",
        ),
        case(
            "no kind of workload",
            "  kind: users\n",
            "",
            "s.yaml:8:1: workload.kind: missing key; kinds: users, open_loop, closed_loop, trace",
        ),
        case(
            "a key of another kind of workload",
            "  client_timeout: 120s",
            "  request_rate: 5",
            "s.yaml:19:3: workload.request_rate: unknown key; keys: kind, users, classes, new_conversation_after, "
            "client_timeout, retries, team_size, session, start, ramp_up",
        ),
        case(
            "unknown arrivals",
            "{gamma: {burstiness: 0.25}}",
            "poison",
            "s.yaml:6:13: workload.arrivals: unknown value; got 'poison'; did you mean 'poisson'?",
            OPEN,
        ),
        case(
            "a rate that is none",
            "request_rate: 5",
            "request_rate: fast",
            "s.yaml:5:17: workload.request_rate: a rate is a number of requests per second above 0, or inf; got 'fast'",
            OPEN,
        ),
    ],
)
def test_one_line_says_what_is_wrong_with_a_value(text: str, line: str) -> None:
    assert lines_for(text) == [line]


def test_all_problems_are_said_in_the_order_of_the_file() -> None:
    text = edited(edited(edited(USERS, "gpu: rtx", "gpus: rtx"), "45s", "45"), "seqs: 64", "seqs: x")
    assert [line.split(": ")[1] for line in lines_for(text)] == [
        "server.gpu",
        "server.gpus",
        "server.flags.max_num_seqs",
        "workload.classes.0.think_time.lognormal.median",
    ]
