import pytest

from indexer.relay.endpoints import (
    DiscoveryError,
    RankEndpoints,
    configured_ranks,
    model_names,
    reachable,
    role_of,
    sglang_ranks,
    vllm_ranks,
)
from indexer.relay.load_poll import Presence
from indexer.relay.load_report import LoadReport, RankLoad, parse_loads, parse_metrics


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("tcp://*:5557", "tcp://host:5557"),
        ("tcp://0.0.0.0:5557", "tcp://host:5557"),
        ("tcp://[::]:5557", "tcp://host:5557"),
        ("tcp://10.0.0.9:5557", "tcp://10.0.0.9:5557"),
        ("ipc:///tmp/kv", "ipc:///tmp/kv"),
    ],
)
def test_wildcards_become_the_engines_host(endpoint, expected):
    assert reachable(endpoint, "host") == expected


def test_ipv6_hosts_get_brackets():
    assert reachable("tcp://*:5557", "fd00::1") == "tcp://[fd00::1]:5557"


def test_vllm_sources_by_rank():
    answer = {
        "10": {"endpoint": "tcp://*:5567", "replay_endpoint": None},
        "0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:6557", "topic": ""},
    }
    assert vllm_ranks(answer, "h") == (
        RankEndpoints(0, "tcp://h:5557", "tcp://h:6557"),
        RankEndpoints(10, "tcp://h:5567"),
    )


@pytest.mark.parametrize("answer", [None, {}, [], {"0": {}}, {"x": {"endpoint": "tcp://*:1"}}])
def test_vllm_sources_that_say_nothing(answer):
    with pytest.raises(DiscoveryError):
        vllm_ranks(answer, "h")


def test_sglang_ports_count_up_by_rank():
    told = {
        "endpoint_host": "*",
        "endpoint_port_base": 5557,
        "replay_endpoint_port_base": 6557,
        "dp_size": 2,
    }
    assert sglang_ranks({"kv_events": told}, "h") == (
        RankEndpoints(0, "tcp://h:5557", "tcp://h:6557"),
        RankEndpoints(1, "tcp://h:5558", "tcp://h:6558"),
    )


def test_sglang_before_replay_ports_were_told():
    told = {"endpoint_host": "10.1.1.1", "endpoint_port_base": 5557, "dp_size": 1}
    assert sglang_ranks({"kv_events": told}, "h") == (RankEndpoints(0, "tcp://10.1.1.1:5557"),)


@pytest.mark.parametrize("info", [{}, {"kv_events": None}, {"kv_events": {"dp_size": 1}}])
def test_sglang_without_events(info):
    with pytest.raises(DiscoveryError):
        sglang_ranks(info, "h")


def test_configured_endpoints():
    ranks = configured_ranks(("tcp://*:1", "tcp://*:2"), (), "h")
    assert ranks == (RankEndpoints(0, "tcp://h:1"), RankEndpoints(1, "tcp://h:2"))
    assert configured_ranks((), (), "h") == ()
    with pytest.raises(DiscoveryError):
        configured_ranks(("5557",), (), "h")


def test_base_model_comes_first():
    answer = {"data": [{"id": "adapter", "parent": "base"}, {"id": "base", "parent": None}, 7]}
    assert model_names(answer) == ("base", "adapter")
    with pytest.raises(DiscoveryError):
        model_names({"data": []})


def test_roles():
    assert role_of({"disaggregation_mode": "prefill"}) == "prefill"
    assert role_of({"disaggregation_mode": "null"}) == "both"
    assert role_of({}) == "both"


VLLM_PAGE = """# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="a\\"b,c=\\"d\\""} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} NaN
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
process_start_time_seconds 1.7e+09
vllm:num_requests_running broken
"""
SGLANG_PAGE = """sglang:num_running_reqs{dp_rank="1",tp_rank="0"} 2.0
sglang:num_running_reqs{dp_rank="1",tp_rank="1"} 3.0
sglang:num_queue_reqs{dp_rank="1",tp_rank="0"} 5.0
sglang:token_usage{dp_rank="1",tp_rank="0"} 1.5
sglang:max_total_num_tokens{dp_rank="1"} 4096
"""


def test_vllm_metrics():
    assert parse_metrics(VLLM_PAGE) == LoadReport(
        {0: RankLoad(2, 1, 0.25), 1: RankLoad(4, None, None)}, 1.7e9, 16_000
    )


def test_sglang_metrics():
    assert parse_metrics(SGLANG_PAGE) == LoadReport({1: RankLoad(3, 5, 1.0)}, None, 4096)


def test_metrics_that_say_nothing():
    assert parse_metrics("") == LoadReport()


def test_sglang_loads():
    rank = {"dp_rank": 1, "num_running_reqs": 2, "num_waiting_reqs": 3, "token_usage": 0.5}
    expected = LoadReport({1: RankLoad(2, 3, 0.5)}, None, 99)
    assert parse_loads({"loads": [rank | {"max_total_num_tokens": 99}]}) == expected
    assert parse_loads([{"num_running_reqs": 1}, 7]).ranks == {0: RankLoad(1)}
    assert parse_loads("no") == LoadReport()


def test_down_after_three_failures_and_back_with_one_answer():
    presence = Presence()
    assert not presence.answered(100.0)
    assert [presence.failed() for _ in range(4)] == [False, False, True, False]
    assert not presence.is_up
    assert presence.answered(100.0)
    assert presence.is_up
    assert not presence.answered(100.0)


def test_only_a_later_start_hints_at_a_restart():
    presence = Presence()
    starts = [100.0, None, 100.0, 101.0, 100.0, 101.0, 102.0]
    assert [presence.answered(start) for start in starts] == [
        False, False, False, True, False, False, True,
    ]  # fmt: skip
