import asyncio

import pytest
from replay_target import ScriptedServer, content, sse

from bench.live.replay import ReplayConfig, replay
from bench.traces.record import TraceRequest
from bench.traces.tokens import PromptTokens


class SilentProgress:
    def __init__(self):
        self.sent_count, self.ended, self.closed = 0, [], False

    def sent(self):
        self.sent_count += 1

    def finished(self, outcome):
        self.ended.append(outcome)

    def close(self):
        self.closed = True


def requests(count, gap_s=0.01, output_tokens=3):
    return [TraceRequest(i * gap_s, 600, output_tokens, (0, i + 1), 512, i) for i in range(count)]


async def run(server, trace, on_measured=None, **config):
    progress = SilentProgress()
    full = ReplayConfig(base_url=server.url, **{"model": "m", **config})
    outcomes = await replay(full, trace, progress, on_measured)
    assert progress.closed
    assert len(progress.ended) == progress.sent_count
    return outcomes


async def test_measures_good_answers_and_sends_what_the_trace_says():
    hooks = []

    async def hook():
        hooks.append(True)

    trace = requests(5)
    async with ScriptedServer().serving() as server:
        outcomes = await run(server, trace, hook, warmup_requests=2, namespace=3)
    assert [o.index for o in outcomes] == list(range(5))
    assert [o.warmup for o in outcomes] == [True, True, False, False, False]
    assert hooks == [True]
    for outcome in outcomes:
        assert (outcome.error, outcome.status, outcome.instance) == (None, 200, "e0")
        assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.output_tokens) == (600, 16, 3)
        assert 0.015 < outcome.ttft_s <= outcome.e2e_s < 1
        assert 0 <= outcome.tpot_s < 0.1
        assert 0 <= outcome.lag_s < 0.5
    bodies = sorted(server.bodies, key=lambda body: trace_index(trace, body))
    assert [b["prompt"] for b in bodies] == [PromptTokens(3, 512).of_prompt(r) for r in trace]
    assert len({h["X-Request-Id"] for h in server.headers}) == 5


def trace_index(trace, body):
    return [PromptTokens(3, 512).of_prompt(r) for r in trace].index(body["prompt"])


async def test_is_open_loop():
    """All are sent on time although no answer comes before the last one was sent."""
    everyone = asyncio.Event()

    async def hold(server, body, write):
        if len(server.bodies) == 6:
            everyone.set()
        await everyone.wait()
        await ScriptedServer.good(server, body, write)

    async with ScriptedServer(hold).serving() as server:
        outcomes = await run(server, requests(6))
    assert [o.error for o in outcomes] == [None] * 6
    assert outcomes[0].ttft_s > outcomes[5].ttft_s


async def test_an_http_error_is_a_failure_with_its_text():
    async with ScriptedServer().serving() as server:
        (outcome,) = await run(server, requests(1), model="refused")
    assert outcome.status == 404
    assert "no such model" in outcome.error
    assert outcome.ttft_s is None


async def cut_short(_server, _body, write):
    await write(content(" x"))


async def broken(_server, _body, write):
    await write(content(" x") + sse({"error": {"message": "boom"}}) + sse("[DONE]"))


async def empty(_server, _body, write):
    await write(sse({"choices": [], "usage": {"prompt_tokens": 1}}) + sse("[DONE]"))


@pytest.mark.parametrize(
    ("answer", "reason"), [(cut_short, "without"), (broken, "boom"), (empty, "without content")]
)
async def test_streams_that_are_no_answer(answer, reason):
    async with ScriptedServer(answer).serving() as server:
        (outcome,) = await run(server, requests(1))
    assert reason in outcome.error


async def test_no_server_at_all():
    server = ScriptedServer()
    async with server.serving():
        pass
    (outcome,) = await run(server, requests(1))
    assert "ClientConnectorError" in outcome.error


async def never(_server, _body, write):
    await write(content(" x"))
    await asyncio.sleep(30)


async def test_the_limits():
    async with ScriptedServer(never).serving() as server:
        in_flight = await run(server, requests(3), max_in_flight=2, drain_timeout_s=0.1)
        timed_out = await run(server, requests(1), request_timeout_s=0.1)
        late = await run(server, requests(3, gap_s=0.3), deadline_s=0.4, drain_timeout_s=5)
    assert "limit of requests in flight" in in_flight[2].error
    assert "not finished" in in_flight[0].error
    assert timed_out[0].error == "request timeout"
    assert [bool(o.error) for o in late] == [True] * 3
    assert "not sent before the deadline" in late[2].error
    assert len(server.bodies) == 2 + 1 + 2


async def test_a_failing_hook_ends_the_replay():
    async def hook():
        raise RuntimeError("hook")

    async with ScriptedServer(never).serving() as server:
        with pytest.raises(ExceptionGroup):
            await run(server, requests(2), hook)
