"""How a router chooses: each rule on a few endpoints made by hand."""

from dataclasses import dataclass

from sim.fleet.routing import LeastRequests, PrefixAware, RoundRobin, SessionAffinity
from sim.workload.client import ClientRequest
from tests.cases.build import sent


@dataclass
class Endpoint:
    number: int
    num_requests: int = 0
    num_waiting: int = 0
    kv_use: float = 0.0


def endpoints(*numbers: int) -> list[Endpoint]:
    return [Endpoint(number) for number in numbers]


def of_user(user_id: int, number: int = 0) -> ClientRequest:
    return sent(number, 100, 10, user_id=user_id)


def with_prefix(number: int, stream: int, *, tokens: int = 640) -> ClientRequest:
    """Returns a request that begins with a text of that stream, and goes on alone."""
    return sent(number, ((stream, tokens), (1000 + number, 64)), 10)


def test_turns_pass_over_a_replica_that_is_not_listed() -> None:
    rule, request = RoundRobin(), sent(0, 10, 1)
    assert [rule.choose(request, endpoints(0, 1, 2)) for _ in range(4)] == [0, 1, 2, 0]
    assert {rule.choose(request, endpoints(0, 2)) for _ in range(4)} == {0, 2}


def test_the_fewest_requests_in_flight_win_and_equals_take_turns() -> None:
    rule, request = LeastRequests(), sent(0, 10, 1)
    busy = [Endpoint(0, num_requests=3), Endpoint(1, num_requests=1), Endpoint(2, num_requests=2)]
    assert rule.choose(request, busy) == 1
    assert [LeastRequests().choose(request, endpoints(0, 1, 2)), rule.choose(request, endpoints(0, 1, 2))] == [0, 2]


def test_when_a_replica_goes_only_its_own_users_move() -> None:
    rule = SessionAffinity()
    before = {user: rule.choose(of_user(user), endpoints(0, 1, 2, 3)) for user in range(400)}
    after = {user: rule.choose(of_user(user), endpoints(0, 1, 3)) for user in range(400)}
    assert all(after[user] == number for user, number in before.items() if number != 2)
    assert all(number != 2 for number in after.values())
    shares = [sum(number == each for number in before.values()) for each in range(4)]
    assert min(shares) > 50  # of 100: a hash ring is uneven, and every replica still gets its users


def test_a_request_of_nobody_goes_where_least_is_to_do() -> None:
    assert SessionAffinity().choose(sent(0, 10, 1), [Endpoint(0, num_requests=2), Endpoint(1, num_requests=1)]) == 1


def test_the_same_beginning_goes_to_the_same_replica() -> None:
    rule = PrefixAware(cached_tokens=100_000)
    first = rule.choose(with_prefix(0, 7), endpoints(0, 1, 2))
    others = {rule.choose(with_prefix(number, 20 + number), endpoints(0, 1, 2)) for number in range(1, 3)}
    assert others == {0, 1, 2} - {first}  # nothing in common: equals take turns
    assert rule.choose(with_prefix(5, 7), endpoints(0, 1, 2)) == first


def test_a_long_queue_and_a_full_cache_outweigh_a_prefix() -> None:
    rule = PrefixAware(cached_tokens=100_000)
    assert rule.choose(with_prefix(0, 7), endpoints(0, 1)) == 0
    queued = [Endpoint(0, num_waiting=9, kv_use=0.95), Endpoint(1, num_waiting=0, kv_use=0.1)]
    assert rule.choose(with_prefix(1, 7), queued) == 1  # 3 x 10/11 + 0 + 2 x 0.05 < 0 + 2 + 2 x 0.9
    short = rule.choose(with_prefix(2, 30, tokens=640), [Endpoint(0, kv_use=0.95), Endpoint(1, kv_use=0.1)])
    assert short == 1


def test_a_replica_that_lost_its_cache_is_like_any_other() -> None:
    rule = PrefixAware(cached_tokens=100_000)
    assert rule.choose(with_prefix(0, 7), endpoints(0, 1)) == 0
    rule.forget(0)
    assert rule.choose(with_prefix(1, 7), [Endpoint(0, kv_use=0.2), Endpoint(1, kv_use=0.1)]) == 1


def test_the_index_forgets_what_the_cache_could_not_hold() -> None:
    rule = PrefixAware(cached_tokens=1280)
    assert rule.choose(with_prefix(0, 7), endpoints(0)) == 0
    for number in range(1, 4):
        rule.choose(with_prefix(number, 20 + number), endpoints(0))
    assert rule.choose(with_prefix(9, 7), [Endpoint(0, kv_use=0.2), Endpoint(1, kv_use=0.1)]) == 1
