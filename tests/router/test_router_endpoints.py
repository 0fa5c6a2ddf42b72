"""Who is there, how they are, and what the dispatcher gets to see."""

import pytest

from indexer.core.events import Heartbeat, StreamState
from indexer.core.ingest import Ingest
from indexer.core.streams import IngestConfig
from router.config import ProbeConfig
from router.core.dispatch import DispatchConfig, Dispatcher
from router.core.health import HealthConfig
from router.core.policies import POLICIES
from router.endpoints import Endpoints
from router.overlap import NoOverlap
from router.prober import parse_load, parse_models


class Setup:
    def __init__(self):
        self.now_s = 100.0
        self.dispatcher = Dispatcher(DispatchConfig(), POLICIES["random"], NoOverlap())
        self.added, self.removed = [], []
        self.endpoints = Endpoints(
            self.dispatcher, ProbeConfig(), HealthConfig(), self.added.append, self.removed.append
        )
        self.ingest = Ingest(IngestConfig())

    def beat(self, name, url, ranks=(0,), leaving=False, models=(), **load):
        states = [StreamState(rank, 1, -1, 0, 0, **load) for rank in ranks]
        heartbeat = Heartbeat(
            name, "p", 0.0, states, url, "m", 16, leaving=leaving, models=list(models)
        )
        self.ingest.on_heartbeat(heartbeat, self.now_s)

    def follow(self, connected=True):
        self.endpoints.follow(self.ingest.heartbeats.values(), self.ingest.streams, connected)
        self.endpoints.publish(self.now_s)

    def keys(self, healthy_only=False):
        return [e.key for e in self.dispatcher.endpoints() if e.healthy or not healthy_only]

    def publish(self):
        self.endpoints.publish(self.now_s)


@pytest.fixture
def setup():
    return Setup()


def test_a_configured_instance_is_named_by_its_address(setup):
    instance = setup.endpoints.add("http://h:1/")
    assert setup.endpoints.add("http://H:1") is instance
    setup.publish()
    assert setup.keys() == [("h:1", 0)]
    assert setup.added == [instance]


def test_an_announcement_renames_a_configured_instance(setup):
    setup.endpoints.add("http://h:1")
    setup.publish()
    setup.beat("pod", "http://h:1/", models=["alias"])
    setup.follow()
    assert setup.keys() == [("pod", 0)]
    assert setup.dispatcher.endpoints()[0].models == ("m", "alias")
    assert setup.endpoints.find("h:1") is setup.endpoints.find("pod")


def test_ranks_are_endpoints_of_one_instance(setup):
    setup.beat("pod", "http://h:1", ranks=(0, 1))
    setup.follow()
    assert setup.keys() == [("pod", 0), ("pod", 1)]
    assert setup.endpoints.has_ranks(("pod", 0), "http://h:1")
    setup.beat("pod", "http://h:1", ranks=(0,))
    setup.follow()
    assert setup.keys() == [("pod", 0)]
    assert not setup.endpoints.has_ranks(("pod", 0), "http://h:1")


def test_a_gone_heartbeat_alone_drops_nobody(setup):
    setup.beat("pod", "http://h:1")
    setup.follow()
    instance = setup.endpoints.find("pod")
    setup.beat("pod", "http://h:1", leaving=True)
    setup.follow()
    assert setup.keys() == [("pod", 0)]  # not probed: may well be there
    setup.endpoints.probed(instance, True)
    setup.follow()
    assert setup.keys() == [("pod", 0)]
    for _ in range(2):
        setup.endpoints.probed(instance, False)
    setup.follow(connected=False)
    assert setup.keys() == [("pod", 0)]  # without a bus, silence says nothing
    setup.follow()
    assert setup.keys() == []
    assert setup.removed == [instance]


def test_a_dead_instance_that_is_announced_or_configured_stays_and_is_not_used(setup):
    setup.beat("pod", "http://h:1")
    setup.endpoints.add("http://h:2")
    setup.follow()
    for instance in setup.endpoints.instances():
        for _ in range(2):
            setup.endpoints.probed(instance, False)
    setup.follow()
    assert len(setup.keys()) == 2
    assert setup.keys(healthy_only=True) == []


def test_a_moved_instance_leaves_its_old_address(setup):
    setup.beat("pod", "http://h:1")
    setup.follow()
    setup.now_s += 1
    setup.beat("pod", "http://h:2")
    setup.follow()
    assert [(e.key, e.url) for e in setup.dispatcher.endpoints()] == [(("pod", 0), "http://h:2")]


def test_a_restarted_engine_with_a_new_name_is_one_instance(setup):
    setup.beat("old", "http://h:1")
    setup.follow()
    setup.now_s += 1
    setup.beat("new", "http://h:1")
    setup.follow()
    assert setup.keys() == [("new", 0)]


def test_what_was_removed_by_hand_is_not_brought_back_by_its_heartbeats(setup):
    setup.beat("pod", "http://h:1")
    setup.follow()
    setup.endpoints.remove(setup.endpoints.find("pod"))
    setup.follow()
    assert setup.keys() == []
    setup.endpoints.add("http://h:1")
    setup.follow()
    assert setup.keys() == [("pod", 0)]


def test_an_announcement_without_an_address_is_left_out(setup):
    setup.beat("pod", "somewhere")
    setup.follow()
    assert setup.keys() == []


def test_probes_take_out_and_bring_back(setup):
    instance = setup.endpoints.add("http://h:1")
    assert (instance.state, setup.endpoints.is_ready()) == ("unknown", False)
    setup.endpoints.probed(instance, True)
    setup.endpoints.probed(instance, False)
    assert instance.state == "up"
    setup.endpoints.probed(instance, False)
    assert (instance.state, setup.endpoints.count("down")) == ("down", 1)
    setup.endpoints.probed(instance, True)
    assert setup.endpoints.is_ready()


def fail(setup, url):
    for _ in range(HealthConfig().failures_to_down):
        setup.endpoints.failed(url, setup.now_s)


def test_failing_answers_open_the_circuit_for_a_pause(setup):
    setup.endpoints.add("http://h:1")
    setup.endpoints.add("http://h:2")
    setup.publish()
    fail(setup, "http://h:1")
    assert setup.keys(healthy_only=True) == [("h:2", 0)]
    setup.now_s += 1.1
    setup.publish()
    assert len(setup.keys(healthy_only=True)) == 2
    fail(setup, "http://h:1")
    setup.endpoints.answered("http://h:1")
    setup.publish()
    assert len(setup.keys(healthy_only=True)) == 2


def test_with_all_circuits_open_all_are_used(setup):
    for number in (1, 2):
        setup.endpoints.add(f"http://h:{number}")
    setup.publish()
    for number in (1, 2):
        fail(setup, f"http://h:{number}")
    assert len(setup.keys(healthy_only=True)) == 2


def test_load_reports_age(setup):
    setup.beat("pod", "http://h:1", running=3, waiting=2, load_age_s=1.0)
    setup.follow()
    (endpoint,) = setup.dispatcher.endpoints()
    assert (endpoint.running_requests, endpoint.waiting_requests) == (3, 2)
    assert endpoint.load_at_s == 99.0
    assert setup.endpoints.fresh_loads(setup.now_s) == 1
    setup.now_s += 10
    setup.publish()
    (endpoint,) = setup.dispatcher.endpoints()
    assert endpoint.running_requests is None
    assert setup.endpoints.fresh_loads(setup.now_s) == 0


def test_models_known_and_not(setup):
    one, two = setup.endpoints.add("http://h:1"), setup.endpoints.add("http://h:2")
    assert setup.endpoints.known_models() is None
    setup.endpoints.learned(one, [{"id": "m"}, {"id": "lora"}, {"no": "id"}])
    assert setup.endpoints.known_models() is None  # the other may serve anything
    assert setup.endpoints.default_model() == "m"
    for _ in range(2):
        setup.endpoints.probed(two, False)
    assert setup.endpoints.known_models() == ["lora", "m"]
    setup.endpoints.learned(two, [{"id": "n"}])
    assert setup.endpoints.default_model() == ""


@pytest.mark.parametrize(
    ("page", "load"),
    [
        (b'vllm:num_requests_running{m="a"} 3.0\nvllm:num_requests_waiting{m="a"} 1.0\n', (3, 1)),
        (
            (
                b'# HELP x\nvllm:num_requests_running{engine="0"} 3.0\n'
                b'vllm:num_requests_running{engine="1"} 4.0\n'
                b'vllm:num_requests_waiting{engine="0"} 1.0\nvllm:num_requests_waiting{engine="1"} 2\n'
                b'vllm:num_requests_waiting_by_reason{reason="x"} 9\n'
            ),
            (7, 3),
        ),
        (b"sglang:num_running_reqs 5\nsglang:num_queue_reqs 0\n", (5, 0)),
        (b"sglang:num_running_reqs 5\n", None),
        (b"vllm:num_requests_running e\nvllm:num_requests_waiting .\n", None),
        (b"", None),
        (b"\xff\x00", None),
    ],
)
def test_load_in_an_engines_metrics(page, load):
    assert parse_load(page) == load


def test_models_in_an_engines_answer():
    assert parse_models(b'{"data":[{"id":"a"},7]}') == [{"id": "a"}]
    for odd in (b"", b"[]", b"{}", b'{"data":{}}'):
        assert parse_models(odd) is None
