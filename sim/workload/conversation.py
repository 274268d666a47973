"""What one user says, and when one user is there.

A conversation is drawn whole before its first turn, from a random stream of the user's own. So the n-th conversation of
user i is the same at every load and whatever becomes of the ones before it: timeouts, refusals and the speed of the
server change when a turn is sent, never what is in it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from sim.workload.random import Draws, IntSampler, random_stream
from sim.workload.streams import SharedPrefix

_CONVERSATIONS_IN_A_ROW = 16
_TURNS_IN_A_ROW = 256  # enough: conversations this long are drawn a few at a time
_BLOCK = 32  # values a user draws at a time: a few conversations' worth


@dataclass(frozen=True, slots=True)
class UserClass:
    """A class of users who hold the same kind of conversations.

    Attributes:
        name: as in the scenario.
        share: its weight among the classes.
        first_prompt_tokens: new text of the first turn, after the shared prefixes.
        next_prompt_tokens: new text of each later turn.
        output_tokens: length of an answer.
        turns: turns of a conversation.
        think_ns: from an answer to the next turn.
        pause_ns: from the end of a conversation to the next one.
        context_limit_tokens: a conversation ends before a prompt plus its answer would exceed this; None: no limit.
        max_tokens: what the client asks for at most; None: just the length of the answer.
        prefixes: what every conversation begins with.
        priority: vLLM's; lower is earlier.
    """

    name: str
    share: float
    first_prompt_tokens: IntSampler
    next_prompt_tokens: IntSampler
    output_tokens: IntSampler
    turns: IntSampler
    think_ns: IntSampler
    pause_ns: IntSampler
    context_limit_tokens: int | None = None
    max_tokens: int | None = None
    prefixes: tuple[SharedPrefix, ...] = ()
    priority: int = 0


@dataclass(slots=True)
class Conversation:
    """The turns of a conversation, one entry a turn in each list.

    Attributes:
        wait_ns: from the answer before (of the last conversation, for the first turn) to the sending of this turn.
        text_tokens: length of the user's new text.
        answer_tokens: length of the answer.
    """

    wait_ns: list[int] = field(default_factory=list)
    text_tokens: list[int] = field(default_factory=list)
    answer_tokens: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.text_tokens)


class ConversationDraws:
    """The conversations of one user, one after the other.

    Args:
        kind: the user's class.
        seed: of the run.
        user_id: names the random stream.
    """

    __slots__ = ("_answer", "_first", "_generator", "_limit", "_most", "_next", "_pause", "_prefix", "_think", "_turns")

    def __init__(self, kind: UserClass, seed: int, user_id: int) -> None:
        generator = self._generator = random_stream(seed, "users", user_id)
        self._turns = Draws(kind.turns, generator, _BLOCK)
        self._first = Draws(kind.first_prompt_tokens, generator, _BLOCK)
        self._next = Draws(kind.next_prompt_tokens, generator, _BLOCK)
        self._answer = Draws(kind.output_tokens, generator, _BLOCK)
        self._think = Draws(kind.think_ns, generator, _BLOCK)
        self._pause = Draws(kind.pause_ns, generator, _BLOCK)
        self._prefix = sum(prefix.tokens for prefix in kind.prefixes)
        self._limit = sys.maxsize if kind.context_limit_tokens is None else kind.context_limit_tokens
        self._most = sys.maxsize if kind.max_tokens is None else kind.max_tokens

    def draw(self) -> Conversation:
        """Returns the next conversation, at least one turn long."""
        conversation = Conversation()
        context = self._prefix
        for turn in range(self._turns.one()):
            text = self._next.one() if turn else self._first.one()
            answer = min(self._answer.one(), self._most)
            wait_ns = self._think.one() if turn else self._pause.one()
            context += text + answer
            if turn and context > self._limit:
                break
            conversation.wait_ns.append(wait_ns)
            conversation.text_tokens.append(text)
            conversation.answer_tokens.append(answer)
        return conversation

    def draw_under_way(self) -> tuple[Conversation, int]:
        """Returns the conversation that a user is in when one looks, and the turn that comes next in it.

        A long conversation is more often met than a short one, and every turn of it equally often: so any turn of a
        row of conversations is equally likely to be the next.
        """
        row: list[Conversation] = []
        num_turns = 0
        while len(row) < _CONVERSATIONS_IN_A_ROW and num_turns < _TURNS_IN_A_ROW:
            row.append(self.draw())
            num_turns += len(row[-1])
        turn = int(self._generator.integers(num_turns))
        for conversation in row:
            if turn < len(conversation):
                return conversation, turn
            turn -= len(conversation)
        raise AssertionError("the turn lies in one of the conversations")
