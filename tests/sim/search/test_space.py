"""What may be varied: flags of vLLM and values that they can have; everything else is told in one line."""

from __future__ import annotations

import pytest

from sim.errors import UserError
from sim.search import full_key, parse_space
from sim.search.space import Space
from tests.sim.search.made import scenario


def space(*texts: str) -> Space:
    return parse_space(list(texts), scenario())


@pytest.mark.parametrize("name", ["max_num_seqs", "--max-num-seqs", "server.max_num_seqs", "server.flags.max_num_seqs"])
def test_a_flag_may_be_written_as_any_of_its_names(name: str) -> None:
    assert full_key(name) == "server.max_num_seqs"
    assert space(f"{name}=4,2").axes[0].key == "server.max_num_seqs"


def test_numbers_stand_in_order_and_other_values_as_they_were_given() -> None:
    found = space("max_num_seqs=64,4,16", "kv_cache_dtype=fp8,auto", "tensor_parallel_size=2,1")
    assert [axis.values for axis in found.axes] == [(4, 16, 64), ("fp8", "auto"), (1, 2)]
    assert found.size == 12


def test_every_configuration_has_one_identity() -> None:
    found = space("max_num_seqs=1,2", "enable_prefix_caching=true,false", "max_num_batched_tokens=null,512")
    identities = list(found.all())
    assert len(set(identities)) == found.size == 8
    assert [found.identity(found.at(each)) for each in identities] == identities


def test_neighbours_differ_in_one_flag_by_one_step_or_by_any_value_without_an_order() -> None:
    found = space("max_num_seqs=1,2,4,8", "kv_cache_dtype=auto,fp8,bfloat16")
    assert set(found.neighbours((1, 0))) == {(0, 0), (2, 0), (1, 1), (1, 2)}
    assert set(found.neighbours((3, 2))) == {(2, 2), (3, 0), (3, 1)}
    for each in found.all():
        assert all(each in found.neighbours(other) for other in found.neighbours(each))


def test_the_scenario_s_own_server_is_the_nearest_configuration() -> None:
    found = space("max_num_seqs=1,16,64", "kv_cache_dtype=fp8,auto", "enable_prefix_caching=true,false")
    own = {"server.max_num_seqs": 50, "server.kv_cache_dtype": "auto", "server.enable_prefix_caching": False}
    assert found.at(found.nearest(own)) == {**own, "server.max_num_seqs": 64}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "--vary: missing, so there is nothing to choose from; for example server.max_num_seqs=16:512:log"),
        (["max_num_seqs"], "--vary max_num_seqs: expected FLAG=VALUE,VALUE"),
        (["max_num_seqs="], "--vary server.max_num_seqs=: expected KEY=VALUE,VALUE"),
        (["max_num_seq=1,2"], "no flag of vllm serve; got 'max_num_seq'; did you mean 'max_num_seqs'?"),
        (["server.max-num-sequences=1"], "got 'server.max-num-sequences'; did you mean 'max_num_seqs'?"),
        (["workload.users=1,2"], "no flag of vllm serve; got 'workload.users'; flags: max_model_len, "),
        (["max_num_seqs=0,4"], "--vary server.max_num_seqs=0: "),
        (["max_num_seqs=many"], "--vary server.max_num_seqs=many: expected a whole number; got 'many'"),
        (["kv_cache_dtype=fp4"], "--vary server.kv_cache_dtype=fp4: unknown value; got 'fp4'; "),
        (["model=qwen3-14b,foo"], "--vary server.model=foo: unknown model 'foo'; `headcount size --list-models` lists"),
        (["profile=analytical,foo"], "--vary server.profile=foo: profile 'foo': no shipped profile has this name"),
        (["tensor_parallel_size=0"], "--vary server.tensor_parallel_size=0: "),
        (["max_num_seqs=1", "--max-num-seqs=2"], "--vary server.max_num_seqs: given twice"),
        (["max_num_seqs=8:1:log"], "a logarithmic range climbs from a number above 0"),
    ],
)
def test_what_cannot_be_varied_is_told_in_one_line(texts: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        space(*texts)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_flags_of_vllm_are_varied() -> None:
    with pytest.raises(UserError, match="flags of vLLM are varied; the scenario's server is of kind ollama"):
        parse_space(["max_num_seqs=1,2"], scenario(server__kind="ollama"))
