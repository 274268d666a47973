"""`headcount replay`: a measured run through a profile, the prediction beside the measurement."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.options import AsJson
from sim.cli.progress import ProgressLine
from sim.cli.signals import INTERRUPTED, ends_by_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from calibrate.replay import Replay
    from calibrate.replay_server import ServerChoice
    from sim.engine.profile import Profile


def replay(  # noqa: PLR0917 - typer calls it, by name
    requests: Annotated[
        Path,
        typer.Argument(
            help="A measured run: CSV (arrival_s, input_tokens, output_tokens; send_s, ttft_s, e2el_s where known), "
            "a result of `vllm bench serve --save-detailed`, a GuideLLM report, an LLMServingSim run, or a ladder of "
            "closed-loop totals (CSV with max_concurrency, num_prompts, input_len, output_len).",
            show_default=False,
        ),
    ],
    profile: Annotated[
        str,
        typer.Option("--profile", metavar="NAME", help="A shipped profile, or the path of one.", show_default=False),
    ],
    server: Annotated[
        Path | None,
        typer.Option(
            metavar="FLAGS.yaml", help="What of the server differs from the profiled one.", show_default=False
        ),
    ] = None,
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="The client's cap on requests in flight. Default: the recording's.")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(metavar="FROM:TO", help="Count throughput between these seconds. Default: the whole run."),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="The data set of an LLMServingSim run (token ids).", show_default=False)
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay only the first so many requests.")] = None,
    length_spread: Annotated[
        float, typer.Option(min=0, max=1, help="A ladder's lengths: uniform within ± this share of the mean.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Replay a measured run through a profile: metric by percentile, predicted, measured, signed errors.

    Exits with 0, with 2 on bad input, with 130 after Ctrl-C (or the TERM signal): what was replayed by then is printed.
    """
    from calibrate.readers import read_runs
    from calibrate.readers.ladder import is_ladder, read_ladder
    from calibrate.replay import replay as replay_run
    from calibrate.replay import replay_rung
    from calibrate.replay_server import choose_server
    from sim.engine.profile import load_profile

    window_s = None if window is None else _window(window)
    ladder = requests.name.endswith((".csv", ".csv.gz")) and is_ladder(requests)
    of_runs = {"--window": window, "--limit": limit, "--max-concurrency": max_concurrency, "--prompts": prompts}
    _refuse_foreign(requests, ladder, of_runs, length_spread)
    runs = [] if ladder else read_runs(requests, prompts=prompts)
    loaded = load_profile(profile)
    is_path = "/" in profile or profile.endswith((".yaml", ".yml"))
    choice = choose_server(loaded, server, Path(profile).absolute() if is_path else None)
    deployment = choice.plan()
    cap = choice.client_max_concurrency if max_concurrency is None else max_concurrency
    replays: list[Callable[[], Replay]]
    if ladder:
        rungs = read_ladder(requests)
        replays = [partial(replay_rung, rung, deployment, length_spread=length_spread) for rung in rungs]
    else:
        replays = [
            partial(
                replay_run,
                run if limit is None else run.first(limit),
                deployment,
                max_concurrency=cap,
                num_ranks=choice.server.data_parallel_size,
                window_s=window_s,
            )
            for run in runs
        ]
    results, interrupted = _replayed(replays, requests.name)
    if as_json:
        typer.echo(json.dumps(_document(results, loaded, choice, cap), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        for result in results:
            typer.echo("\n".join(_text(result, loaded, cap)))
    if interrupted:
        typer.echo(f"interrupted: {len(results)} of {len(replays)} runs are replayed; nothing is kept", err=True)
        raise typer.Exit(INTERRUPTED)


def _refuse_foreign(requests: Path, ladder: bool, of_runs: Mapping[str, object], length_spread: float) -> None:
    """Refuses the options that another kind of recording has.

    Raises:
        UserError: one was given.
    """
    from calibrate.readers import detect_run_format
    from sim.errors import UserError

    given = next((option for option, value in of_runs.items() if value is not None), None)
    if ladder and given is not None:
        raise UserError(f"{given}: {requests} is a ladder of closed-loop totals, each rung with its own; leave it out")
    if not ladder and length_spread:
        raise UserError(f"--length-spread: of a ladder of closed-loop totals; {requests} has each request's lengths")
    if of_runs["--prompts"] is not None and detect_run_format(requests) != "llmservingsim":
        raise UserError(f"--prompts: of an LLMServingSim run; {requests} is none")


def _replayed(replays: Sequence[Callable[[], Replay]], name: str) -> tuple[list[Replay], bool]:
    """Returns the replays that were finished, and whether Ctrl-C came before all were."""
    results: list[Replay] = []
    try:
        with ends_by_signal(), ProgressLine(f"replaying {name}").alive():
            for each in replays:
                result = each()
                results.append(result)
    except KeyboardInterrupt:
        return results, True
    return results, False


def _window(text: str) -> tuple[float, float]:
    from sim.errors import UserError

    try:
        start, end = (float(part) for part in text.split(":"))
    except ValueError:
        raise UserError(f"--window: got {text!r}; expected two numbers of seconds, as in 60:600") from None
    if not 0 <= start < end:
        raise UserError(f"--window: got {text!r}; the first must be smaller than the second, and at least 0")
    return start, end


def _spread(profile: Profile) -> dict[tuple[str, str | None], float]:
    """Returns the largest spread of the server's own repeats that the profile knows, by metric and statistic."""
    found: dict[tuple[str, str | None], float] = {}
    for table in profile.errors:
        for row in table.rows:
            if row.server_spread_percent is not None:
                key = (row.metric, "p50" if row.statistic == "median" else row.statistic)
                found[key] = max(found.get(key, 0.0), row.server_spread_percent)
    return found


def _document(results: list[Replay], profile: Profile, choice: ServerChoice, cap: int | None) -> dict[str, Any]:
    from calibrate.comparison_text import comparison_data

    runs = [
        {"max_concurrency": cap, **comparison_data(result.comparison, _spread(profile))}
        | {"out_of_range": list(result.out_of_range)}
        for result in results
    ]
    return {
        "profile": profile.name,
        "calibrated": profile.calibrated is True,
        "server": choice.server.model_dump(mode="json", exclude_none=True),
        "runs": runs,
    }


def _text(result: Replay, profile: Profile, cap: int | None) -> list[str]:
    from calibrate.comparison_text import comparison_lines

    comparison = result.comparison
    state = "" if profile.calibrated is True else " (uncalibrated: a prior)"
    client = "" if cap is None else f", at most {cap} in flight"
    number = "1 request" if comparison.num_requests == 1 else f"{comparison.num_requests} requests"
    return [
        f"{comparison.run}: {number} replayed with profile {profile.name}{state}{client}",
        "",
        *comparison_lines(comparison, _spread(profile)),
        *(f"warning: {warning}" for warning in comparison.warnings),
        "",
    ]
