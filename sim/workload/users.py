"""Users: each sends a turn, reads the answer, thinks, and sends the next turn of the same conversation.

A prompt carries the whole conversation so far: the shared prefixes, then every earlier turn and answer, then the new
text. So the server finds in its cache what it still holds of them.

By default the users are at work when the run begins: each one is at some turn of a conversation, so that long contexts
are as frequent at the start as they are later. The server's cache is empty then, which is one reason for a warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count

from sim.records import Outcome
from sim.workload.client import ClientRequest, Prompt, Retries
from sim.workload.conversation import Conversation, ConversationDraws, UserClass
from sim.workload.random import random_stream
from sim.workload.sessions import Attendance, Sessions
from sim.workload.streams import TokenStreams

_GOLDEN_RATIO = 0.6180339887498949
_HOPELESS = (Outcome.REFUSED, Outcome.NEVER_FITS)  # the same conversation would fail again
_AFTER_FAILURE_NS = 1_000_000_000  # an agent that does not think would otherwise ask for ever within one instant


@dataclass(frozen=True, slots=True)
class Habits:
    """What all users of a workload have in common.

    Attributes:
        end_ns: nothing is sent from here on.
        timeout_ns: their patience with one request.
        retries: what they do after a timeout or a 503; when the last try fails, they give the turn up.
        team_size: users 0 to team_size − 1 are the first team, and so on.
        sessions: None: everybody stays.
        ramp_up_ns: the first turns are spread evenly over this time; None: each over the wait before its turn.
        under_way: whether users start in the middle of a conversation.
    """

    end_ns: int
    timeout_ns: int | None = None
    retries: Retries = field(default_factory=Retries)
    team_size: int = 10
    sessions: Sessions | None = None
    ramp_up_ns: int | None = None
    under_way: bool = True


def spread_classes(shares: Sequence[float], num_users: int) -> list[int]:
    """Returns the class of each user, so that any first n users are divided by the shares as evenly as can be.

    The next user joins the class that is furthest behind its share: user i's class does not depend on how many come
    after.
    """
    total = sum(shares)
    counts = [0] * len(shares)
    classes = []
    for users in range(1, num_users + 1):
        behind = [share / total * users - present for share, present in zip(shares, counts, strict=True)]
        class_id = behind.index(max(behind))
        counts[class_id] += 1
        classes.append(class_id)
    return classes


@dataclass(slots=True)
class _User:
    """One user: where in which conversation, and what has been said in it.

    `context` holds the segments of all answered turns and their answers, `context_tokens` their length; before the
    first turn it is empty. `failed` is a request that is to be sent again.
    """

    user_id: int
    class_id: int
    kind: UserClass
    draws: ConversationDraws
    attendance: Attendance | None
    conversation: Conversation = field(default_factory=Conversation)
    turn: int = 0
    context: Prompt = ()
    context_tokens: int = 0
    failed: ClientRequest | None = None

    def open(self, conversation: Conversation) -> None:
        """Begins a conversation."""
        self.conversation = conversation
        self.turn = 0
        self.context = ()
        self.context_tokens = 0


class Users:
    """A number of users, each in a loop of turns.

    Args:
        classes: of users; user i's class is settled by the shares alone.
        num_users: how many.
        habits: what they have in common.
        seed: of the run.
    """

    def __init__(self, classes: Sequence[UserClass], num_users: int, habits: Habits, seed: int) -> None:
        self.class_names = tuple(kind.name for kind in classes)
        self.warnings: tuple[str, ...] = ()
        self._habits = habits
        self._streams = TokenStreams()
        self._num_requests = 0
        self._num_plans = count()
        self._due: list[tuple[int, int, _User]] = []  # a heap of (when, order of planning, who)
        self._users: list[_User] = []
        first_phase = random_stream(seed, "phase").random()
        for user_id, class_id in enumerate(spread_classes([kind.share for kind in classes], num_users)):
            draws = ConversationDraws(classes[class_id], seed, user_id)
            sessions = habits.sessions
            attendance = Attendance(sessions, seed, user_id, habits.under_way) if sessions else None
            user = _User(user_id, class_id, classes[class_id], draws, attendance)
            self._users.append(user)
            # Multiples of the golden ratio, modulo one, are evenly spread however many there are.
            self._start(user, (first_phase + user_id * _GOLDEN_RATIO) % 1)

    @property
    def arrivals_end_ns(self) -> int:
        """When new work stops (see `Workload`)."""
        return self._habits.end_ns

    def next_send_ns(self) -> int | None:
        """Returns when the next request is to be sent (see `Workload`)."""
        return self._due[0][0] if self._due else None

    def pop_due(self, now_ns: int) -> list[ClientRequest]:
        """Returns the requests whose time has come (see `Workload`)."""
        due: list[ClientRequest] = []
        while self._due and self._due[0][0] <= now_ns:
            sent_ns, _, user = heappop(self._due)
            due.append(self._retry(user.failed, user, sent_ns) if user.failed else self._next_turn(user, sent_ns))
            self._num_requests += 1
        return due

    def on_done(self, request: ClientRequest, outcome: Outcome, num_output_tokens: int, now_ns: int) -> None:
        """Plans the user's next turn, or the same one again (see `Workload`)."""
        user = self._users[request.user_id]
        if outcome is Outcome.FINISHED:
            user.context = (*request.prompt, (request.output_stream, num_output_tokens))
            user.context_tokens = request.num_prompt_tokens + num_output_tokens
            self._go_on(user, now_ns)
            return
        delay_ns = self._habits.retries.delay_ns(request, outcome)
        if delay_ns is not None:
            user.failed = request
            self._plan(user, now_ns + delay_ns)
        elif user.turn == 0 or outcome in _HOPELESS:
            self._begin(user, now_ns, _AFTER_FAILURE_NS)
        else:  # the turn is given up: the next one goes on from the last answer
            self._go_on(user, now_ns, _AFTER_FAILURE_NS)

    def _start(self, user: _User, phase: float) -> None:
        """Plans the user's first turn of the run, at this share of the time over which the users start."""
        if user.attendance and user.attendance.start_ns > 0:
            user.open(user.draws.draw())
            self._plan(user, user.attendance.start_ns)
            return
        if self._habits.under_way:
            conversation, turn = user.draws.draw_under_way()
            user.open(conversation)
            self._recall(user, turn)
        else:
            user.open(user.draws.draw())
        spread_ns = self._habits.ramp_up_ns
        if spread_ns is None:
            spread_ns = user.conversation.wait_ns[user.turn]
        self._plan_turn(user, 0, int(phase * spread_ns))

    def _recall(self, user: _User, turn: int) -> None:
        """Gives the user the turns before this one, as if they had been answered before the run."""
        if turn:
            said = user.conversation
            tokens = sum(said.text_tokens[:turn]) + sum(said.answer_tokens[:turn])
            prefix = self._prefix(user)
            user.turn = turn
            user.context = (*prefix, (self._streams.fresh(), tokens))
            user.context_tokens = tokens + sum(length for _, length in prefix)

    def _go_on(self, user: _User, now_ns: int, at_least_ns: int = 0) -> None:
        """Plans the turn after the current one, or a new conversation when that was the last."""
        user.turn += 1
        if user.turn < len(user.conversation):
            self._plan_turn(user, now_ns, now_ns + max(at_least_ns, user.conversation.wait_ns[user.turn]))
        else:
            self._begin(user, now_ns, at_least_ns)

    def _begin(self, user: _User, now_ns: int, at_least_ns: int = 0) -> None:
        """Plans the first turn of a new conversation."""
        user.open(user.draws.draw())
        self._plan_turn(user, now_ns, now_ns + max(at_least_ns, user.conversation.wait_ns[0]))

    def _plan_turn(self, user: _User, now_ns: int, send_ns: int) -> None:
        """Plans the current turn; when the session is over by then, the user comes back later and starts afresh."""
        attendance = user.attendance
        if attendance and send_ns >= attendance.end_ns:
            attendance.leave(now_ns)
            send_ns = attendance.start_ns
            if user.turn:
                user.open(user.draws.draw())
        self._plan(user, send_ns)

    def _plan(self, user: _User, send_ns: int) -> None:
        if send_ns < self._habits.end_ns:
            heappush(self._due, (send_ns, next(self._num_plans), user))

    def _next_turn(self, user: _User, sent_ns: int) -> ClientRequest:
        kind, turn, conversation = user.kind, user.turn, user.conversation
        if not turn:
            user.context = self._prefix(user)
            user.context_tokens = sum(length for _, length in user.context)
        text_tokens, answer_tokens = conversation.text_tokens[turn], conversation.answer_tokens[turn]
        return ClientRequest(
            request_id=self._num_requests,
            prompt=(*user.context, (self._streams.fresh(), text_tokens)),
            num_prompt_tokens=user.context_tokens + text_tokens,
            max_tokens=answer_tokens if kind.max_tokens is None else kind.max_tokens,
            output_tokens=answer_tokens,
            output_stream=self._streams.fresh(),
            class_id=user.class_id,
            queued_ns=sent_ns,
            sent_ns=sent_ns,
            timeout_ns=self._habits.timeout_ns,
            user_id=user.user_id,
            turn=turn,
            priority=kind.priority,
        )

    def _retry(self, failed: ClientRequest, user: _User, sent_ns: int) -> ClientRequest:
        user.failed = None
        return replace(
            failed,
            request_id=self._num_requests,
            output_stream=self._streams.fresh(),  # the model answers anew
            queued_ns=sent_ns,
            sent_ns=sent_ns,
            attempt=failed.attempt + 1,
        )

    def _prefix(self, user: _User) -> Prompt:
        team = user.user_id // self._habits.team_size
        return tuple(self._streams.of(prefix, team, user.user_id) for prefix in user.kind.prefixes)
