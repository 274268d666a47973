"""The naive engine is slow and right: it gives the times of `EngineCore` where it claims to."""

from sim.scenario.load import override
from sim.simulate import simulate
from tests.benchmarks.naive import NaiveEngine
from tests.benchmarks.workloads import naive_twin, single


def test_the_naive_engine_gives_the_same_clock() -> None:
    scenario = override(naive_twin(single(120)), {"workload.request_rate": 40, "server.max_num_seqs": 24})
    run, naive = simulate(scenario, seed=3), NaiveEngine(scenario, seed=3)
    end_ns = naive.run()
    assert end_ns == run.end_ns
    assert naive.num_steps == len(run.steps.end_ns)
    times = {request.client.request_id: request.token_times for request in naive.done}
    for request in run.requests:
        own = times[request.request_id]
        assert (own[0], own[-1], len(own)) == (request.first_token_ns, request.finish_ns, request.num_output_tokens)
