"""The workload of a scenario: who sends what, and when. One of four kinds, told apart by `kind`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Strict, Tag

from sim.scenario.bounds import MOST_REQUESTS, MOST_USERS
from sim.scenario.distributions import Distribution, DurationDistribution
from sim.scenario.part import Named, Part, kind_of
from sim.scenario.units import Duration, Rate


class SharedPrefix(Part):
    """Tokens at the head of every prompt of a class: a system prompt, the common files of a repository."""

    tokens: int = Field(ge=0, description="Length of the prefix.")
    scope: Literal["all", "team", "user", "none"] = Field(
        default="all",
        description="Who sends the same tokens: everyone, a team, one user in all conversations, or nobody.",
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        description="Prefixes of equal name are the same text in every class. Default: each class has its own.",
    )


def _as_list(value: Any) -> Any:
    if isinstance(value, dict | SharedPrefix):
        return [value]
    if not isinstance(value, list | tuple):
        raise ValueError(f"a mapping of tokens and scope, or a list of them; got {value!r}")
    return value


class RequestClass(Part):
    """One kind of request: what every workload knows of it."""

    name: str = Field(min_length=1, description="Name in reports and in objectives ('ttft.p95[name] <= 2s').")
    share: float = Field(default=1.0, ge=0, description="Weight among the classes (of users, or of requests).")
    priority: int = Field(default=0, description="Lower is served first when scheduling_policy is priority.")
    shared_prefix: Annotated[
        tuple[SharedPrefix, ...],
        BeforeValidator(_as_list, json_schema_input_type=SharedPrefix | tuple[SharedPrefix, ...]),
        Strict(False),
    ] = Field(default=(), description="Prefixes at the head of every prompt, one or a list, in this order.")
    output_tokens: Distribution = Field(description="Length of an answer.")
    max_tokens: int | None = Field(
        default=None, gt=0, description="The API's max_tokens; answers are cut there. Default: the drawn length."
    )

    @property
    def num_shared_tokens(self) -> int:
        """Tokens of all shared prefixes together."""
        return sum(prefix.tokens for prefix in self.shared_prefix)


class SingleRequestClass(RequestClass):
    """Independent requests, of an open or a closed loop."""

    prompt_tokens: Distribution = Field(description="Length of a prompt, after the shared prefix.")


class ConversationClass(RequestClass):
    """Users who hold conversations: each turn carries all earlier turns and answers."""

    first_prompt_tokens: Distribution = Field(description="New tokens of a conversation's first message.")
    next_prompt_tokens: Distribution = Field(description="New tokens of each later message.")
    turns: Distribution = Field(description="Messages of a conversation.")
    think_time: DurationDistribution = Field(description="From the end of an answer to the next message.")
    context_limit_tokens: int | None = Field(
        default=None,
        gt=0,
        description="A conversation ends before prompt plus answer exceed this. Default: max_model_len.",
    )


class Retries(Part):
    """What a client does after an error or a timeout."""

    max: int = Field(ge=0, description="Most further tries.")
    backoff: Duration = Field(default=1.0, description="Wait before the first retry; doubles with each further one.")


class Session(Part):
    """People come and go: a user works for `length`, stays away for `pause`, comes back."""

    length: DurationDistribution = Field(description="Time at work.")
    pause: DurationDistribution = Field(description="Time away.")


class UsersWorkload(Part):
    """People or agents who each send a message, read the answer, think, and send the next."""

    kind: Literal["users"] = Field(description="users: people who wait for an answer before they go on.")
    users: int | None = Field(
        default=None, ge=0, le=MOST_USERS, description="People at work; leave out when the search varies it."
    )
    classes: Annotated[tuple[ConversationClass, ...], Strict(False)] = Field(
        min_length=1, description="Kinds of users."
    )
    new_conversation_after: DurationDistribution | None = Field(
        default=None, description="From the end of a conversation to the next one. Default: the think time."
    )
    client_timeout: Duration | None = Field(default=None, gt=0, description="A client gives up after this time.")
    retries: Retries | None = Field(default=None, description="Retries after an error or a timeout. Default: none.")
    team_size: int = Field(default=10, gt=0, description="Users of a team, who share a prefix of scope team.")
    session: Session | None = Field(default=None, description="Users come and go. Default: they stay.")
    start: Literal["under_way", "fresh"] = Field(
        default="under_way",
        description="Where the run finds the users: in the middle of conversations, as at any other moment of the day, "
        "or at a first message.",
    )
    ramp_up: Duration | None = Field(
        default=None, description="Users start spread evenly over this time. Default: over one think time each."
    )


class GammaArrivals(Named):
    """Gamma-distributed gaps between requests, as `vllm bench serve --burstiness` draws them."""

    kind: ClassVar[str] = "gamma"
    burstiness: float = Field(gt=0, description="Shape of the gaps: 1 is Poisson, below 1 burstier, above 1 more even.")


def _arrivals_kind(value: Any) -> str | None:
    return "name" if isinstance(value, str) else kind_of(value)


Arrivals = Annotated[
    Annotated[Literal["poisson", "constant", "all_at_once"], Tag("name")] | Annotated[GammaArrivals, Tag("gamma")],
    Discriminator(_arrivals_kind),
]
"""How an open loop spaces its requests."""


class RateChange(Part):
    """From a moment on, the rate is the base rate times a factor."""

    after: Duration = Field(description="Moment of the change, from the start.")
    factor: float = Field(ge=0, description="Times the base rate.")


class Peaks(Part):
    """Regular peaks: the rate is multiplied for a while, again and again."""

    factor: float = Field(gt=0, description="Times the rate outside the peak.")
    duration: Duration = Field(gt=0, description="Length of a peak.")
    every: Duration = Field(gt=0, description="From the start of one peak to the start of the next.")


class OpenLoopWorkload(Part):
    """Requests that arrive whatever the server does: the public."""

    kind: Literal["open_loop"] = Field(description="open_loop: requests arrive at a rate, whatever the server does.")
    request_rate: Rate | None = Field(
        default=None, description="Requests per second, or inf; leave out when the search varies it."
    )
    arrivals: Arrivals = Field(default="poisson", description="Spacing of the requests.")
    rate_over_time: Annotated[tuple[RateChange, ...], Strict(False)] | None = Field(
        default=None, description="Changes of the rate, in order of time."
    )
    peaks: Peaks | None = Field(default=None, description="Regular peaks on top.")
    num_requests: int | None = Field(
        default=None, gt=0, le=MOST_REQUESTS, description="Stop after so many. Default: at run.duration."
    )
    classes: Annotated[tuple[SingleRequestClass, ...], Strict(False)] = Field(
        min_length=1, description="Kinds of requests."
    )
    client_timeout: Duration | None = Field(default=None, gt=0, description="A client gives up after this time.")
    retries: Retries | None = Field(default=None, description="Retries after an error or a timeout. Default: none.")


class ClosedLoopWorkload(Part):
    """A benchmark client with a cap on requests in flight: `vllm bench serve --max-concurrency`."""

    kind: Literal["closed_loop"] = Field(description="closed_loop: the client of `vllm bench serve`.")
    num_requests: int = Field(gt=0, le=MOST_REQUESTS, description="Requests in all (--num-prompts).")
    max_concurrency: int | None = Field(
        default=None, gt=0, description="Most requests in flight; leave out when the search varies it. None: no cap."
    )
    request_rate: Rate = Field(
        default=float("inf"), description="Requests per second offered, or inf (--request-rate)."
    )
    burstiness: float = Field(default=1.0, gt=0, description="Shape of the gaps at a finite rate (--burstiness).")
    classes: Annotated[tuple[SingleRequestClass, ...], Strict(False)] = Field(
        min_length=1, description="Kinds of requests."
    )
    client_timeout: Duration | None = Field(default=None, gt=0, description="A client gives up after this time.")


class TraceWorkload(Part):
    """Requests replayed from a recording."""

    kind: Literal["trace"] = Field(description="trace: requests of a recording, at its times.")
    path: str = Field(min_length=1, description="The recording, relative to the scenario; may end in .gz.")
    format: Literal["mooncake", "azure", "vllm_bench", "csv"] | None = Field(
        default=None,
        description="Mooncake JSONL, Azure LLM inference CSV, `vllm bench serve` result JSON, or a CSV with "
        "columns arrival_s, input_tokens, output_tokens (class, user, priority). Default: told from the file.",
    )
    rate_scale: float = Field(default=1.0, gt=0, description="Requests per second, as a multiple of the recorded rate.")
    time_scale: float = Field(default=1.0, gt=0, description="Send times are multiplied by this: 2 is half as fast.")
    limit: int | None = Field(default=None, gt=0, description="Replay only the first so many requests.")
    max_concurrency: int | None = Field(default=None, gt=0, description="Most requests in flight. Default: no cap.")
    class_name: str = Field(default="trace", min_length=1, description="Name of the requests, where the file has none.")
    priority: int = Field(default=0, description="Lower is served first when scheduling_policy is priority.")
    client_timeout: Duration | None = Field(default=None, gt=0, description="A client gives up after this time.")


AnyWorkload = UsersWorkload | OpenLoopWorkload | ClosedLoopWorkload | TraceWorkload
KINDS = ("users", "open_loop", "closed_loop", "trace")


def _workload_kind(value: Any) -> str | None:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return f"kind={kind}"


Workload = Annotated[
    Annotated[UsersWorkload, Tag("kind=users")]
    | Annotated[OpenLoopWorkload, Tag("kind=open_loop")]
    | Annotated[ClosedLoopWorkload, Tag("kind=closed_loop")]
    | Annotated[TraceWorkload, Tag("kind=trace")],
    Discriminator(_workload_kind),
]
"""One of the four kinds. The tags carry `kind=` so that no error location takes them for a key of the file."""
