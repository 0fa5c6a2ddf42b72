from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.engine.block_cache import Cleared, Removed, Stored
from bench.engine.model import EngineModel
from bench.engine.profiles import PROFILES
from bench.engine.requests import EngineRequest

PROFILE = PROFILES["llama-8b-h100"]


def chain(*contents):
    return list(accumulate(contents, lambda parent, content: hash((parent, content)), initial=0))[
        1:
    ]


def engine(capacity_tokens=64, block_tokens=4, batched=16, seqs=8):
    return EngineModel(PROFILE, capacity_tokens, block_tokens, batched, seqs)


def step(model, now_s):
    begun = model.begin_step(now_s)
    assert begun is not None
    end_s = now_s + begun.duration_s
    return begun, model.finish_step(begun, end_s), end_s


def drain(model, now_s=0.0):
    results = []
    while (begun := model.begin_step(now_s)) is not None:
        now_s += begun.duration_s
        results.append(model.finish_step(begun, now_s))
    return results, now_s


def test_one_request_prefills_in_chunks_then_decodes():
    model = engine()
    model.submit(EngineRequest("a", 20, 3, chain(1, 2, 3, 4, 5)), 0.0)
    first, result, now_s = step(model, 0.0)
    assert (first.prefill_tokens, first.decode_tokens) == (16, 0)
    assert first.duration_s == PROFILE.step_s(16, 16 * 8, 0)
    assert result.cached_tokens == {"a": 0}
    assert result.events == [Stored(tuple(chain(1, 2, 3, 4)), None, 0, "a")]
    assert not result.emitted
    second, result, now_s = step(model, now_s)
    assert second.duration_s == PROFILE.step_s(4, 4 * (16 + 2), 0)
    assert result.emitted == result.first == ("a",)
    third, result, now_s = step(model, now_s)
    assert (third.prefill_tokens, third.decode_tokens) == (0, 1)
    assert third.duration_s == PROFILE.step_s(1, 0, 21)
    assert result.first == ()
    _, result, now_s = step(model, now_s)
    assert result.finished == ("a",)
    assert model.begin_step(now_s) is None
    assert model.stats().generated_tokens == 3


def test_decodes_go_before_prefill_chunks():
    model = engine()
    model.submit(EngineRequest("a", 4, 5, []), 0.0)
    _, _, now_s = step(model, 0.0)
    model.submit(EngineRequest("b", 40, 1, []), now_s)
    begun, _, _ = step(model, now_s)
    assert [(share.live.request.request_id, share.tokens) for share in begun.scheduled] == [
        ("a", 1),
        ("b", 15),
    ]


@pytest.mark.parametrize(
    ("prompt_tokens", "cached"), [(16, 12), (17, 16), (19, 16), (20, 16), (4, 0), (5, 4)]
)
def test_the_last_prompt_token_is_always_computed(prompt_tokens, cached):
    model = engine()
    names = chain(1, 2, 3, 4, 5)[: prompt_tokens // 4]
    model.submit(EngineRequest("a", prompt_tokens, 1, names), 0.0)
    _, now_s = drain(model)
    model.submit(EngineRequest("b", prompt_tokens, 1, names), now_s)
    _, result, _ = step(model, now_s)
    assert result.cached_tokens == {"b": cached}
    assert result.events == []


def test_blocks_of_a_step_in_progress_can_be_hit_as_in_vllm():
    model = engine(batched=64)
    model.submit(EngineRequest("a", 9, 1, chain(1, 2)), 0.0)
    model.submit(EngineRequest("b", 9, 1, chain(1, 2)), 0.0)
    _, result, _ = step(model, 0.0)
    assert result.cached_tokens == {"a": 0, "b": 8}


def test_generated_blocks_are_cached_only_when_they_are_named():
    model = engine()
    model.submit(EngineRequest("named", 4, 6, chain(1, 2)), 0.0)
    results, now_s = drain(model)
    stored = [event for result in results for event in result.events]
    assert stored == [
        Stored((chain(1)[0],), None, 0, "named"),
        Stored((chain(1, 2)[1],), *stored_behind()),
    ]
    model.submit(EngineRequest("unnamed", 4, 9, chain(7)), now_s)
    results, _ = drain(model, now_s)
    assert sum(len(result.events) for result in results) == 1


def stored_behind():
    return chain(1)[0], 1, "named"


def test_the_youngest_is_preempted_and_starts_over_from_the_cache():
    model = engine(capacity_tokens=24, batched=64)  # 6 blocks
    model.submit(EngineRequest("old", 8, 8, chain(1, 2)), 0.0)
    model.submit(EngineRequest("young", 8, 8, chain(3, 4)), 0.0)
    results, _ = drain(model)
    assert model.stats().preempted >= 1
    assert model.stats().finished == 2
    done = [name for result in results for name in result.finished]
    assert done == ["old", "young"]
    emitted = [name for result in results for name in result.emitted]
    assert emitted.count("old") == emitted.count("young") == 8


def test_removals_come_before_the_stores_that_replace_them():
    model = engine(capacity_tokens=16, batched=64)
    model.submit(EngineRequest("a", 13, 1, chain(1, 2, 3)), 0.0)
    _, now_s = drain(model)
    model.submit(EngineRequest("b", 9, 1, chain(7, 8)), now_s)
    _, result, _ = step(model, now_s)
    assert result.events == [
        Removed((chain(1, 2, 3)[2], chain(1, 2)[1])),
        Stored(tuple(chain(7, 8)), None, 0, "b"),
    ]


def test_reset_is_announced_with_the_next_step():
    model = engine()
    model.submit(EngineRequest("a", 8, 1, chain(1, 2)), 0.0)
    assert model.reset_prefix_cache()
    begun = model.begin_step(0.0)
    assert not model.reset_prefix_cache()
    result = model.finish_step(begun, begun.duration_s)
    assert result.events[0] == Cleared()
    assert model.reset_prefix_cache()
    assert model.held_hashes() == set()


def test_abort_in_every_state_frees_the_blocks():
    model = engine(seqs=1)
    model.submit(EngineRequest("running", 8, 4, chain(1, 2)), 0.0)
    model.submit(EngineRequest("waiting", 8, 4, chain(1, 2)), 0.0)
    begun = model.begin_step(0.0)
    assert model.abort("waiting")
    assert model.abort("running")
    assert not model.abort("running")
    result = model.finish_step(begun, 1.0)
    assert (result.emitted, result.finished, result.cached_tokens) == ((), (), {})
    assert result.events == [Stored(tuple(chain(1, 2)), None, 0, "running")]
    stats = model.stats()
    assert (stats.running, stats.waiting, stats.aborted, stats.kv_usage) == (0, 0, 2, 0.0)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (EngineRequest("a", 60, 6, []), "do not fit"),
        (EngineRequest("a", 0, 1, []), "at least one"),
        (EngineRequest("a", 1, 0, []), "at least one"),
        (EngineRequest("a", 4, 3, [1, 2]), "more hashes"),
        (EngineRequest("taken", 4, 3, []), "in use"),
    ],
)
def test_impossible_requests_are_refused(request_, words):
    model = engine()
    model.submit(EngineRequest("taken", 60, 5, []), 0.0)
    with pytest.raises(ValueError, match=words):
        model.submit(request_, 0.0)
    assert model.stats().arrived == 1


def test_wrong_use_is_an_error():
    model = engine()
    model.submit(EngineRequest("a", 4, 3, []), 1.0)
    with pytest.raises(ValueError, match="backwards"):
        model.begin_step(0.5)
    begun = model.begin_step(1.0)
    with pytest.raises(RuntimeError, match="before finish_step"):
        model.begin_step(1.0)
    model.finish_step(begun, 2.0)
    with pytest.raises(RuntimeError, match="not in progress"):
        model.finish_step(begun, 2.0)
    for seqs, batched, block_tokens in ((0, 16, 4), (17, 16, 4), (4, 16, 0)):
        with pytest.raises(ValueError, match=r"at least|from 1"):
            EngineModel(PROFILE, 64, block_tokens, batched, seqs)


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 1), max_size=8),  # full blocks of the prompt
        st.integers(1, 4),  # tokens behind them
        st.integers(1, 12),  # output tokens
        st.booleans(),  # output blocks named, too
        st.integers(0, 3),  # steps before the next arrival
        st.none() | st.integers(0, 5),  # abort after so many more steps
    ),
    max_size=14,
)


def named_request(number, blocks, tail_tokens, output_tokens, names_output):
    prompt_tokens = 4 * len(blocks) + tail_tokens
    full = (prompt_tokens + output_tokens if names_output else prompt_tokens) // 4
    contents = (blocks + [("own", number, i) for i in range(full)])[:full]
    return EngineRequest(str(number), prompt_tokens, output_tokens, chain(*contents))


def apply(content, events):
    for event in events:
        if isinstance(event, Stored):
            assert event.parent_hash is None or event.parent_hash in content
            content.update(event.hashes)
        else:
            content.difference_update(event.hashes)


def play(plan, capacity_tokens):
    """Runs `plan` to its end, checking what must hold after every step; returns the history."""
    model = engine(capacity_tokens)
    history, content, emitted, abort_at = [], set(), {}, {}
    now_s, steps = 0.0, 0

    def one_step():
        nonlocal now_s, steps
        begun = model.begin_step(now_s)
        steps += 1
        for request_id in [name for name, due in abort_at.items() if due == steps]:
            model.abort(request_id)
        if begun is None:
            return False
        assert begun.scheduled
        assert begun.prefill_tokens + begun.decode_tokens <= 16
        now_s += begun.duration_s
        result = model.finish_step(begun, now_s)
        apply(content, result.events)
        for name in result.emitted:
            emitted[name] = emitted.get(name, 0) + 1
        stats = model.stats()
        assert content == model.held_hashes()
        assert stats.arrived == stats.finished + stats.aborted + stats.running + stats.waiting
        assert stats.running <= 8
        assert 0 <= stats.kv_usage <= 1
        history.append((now_s, result))
        return True

    for number, (blocks, tail, output, names_output, gap, abort_after) in enumerate(plan):
        model.submit(named_request(number, blocks, tail, output, names_output), now_s)
        if abort_after is not None:
            abort_at[str(number)] = steps + abort_after + 1
        for _ in range(gap):
            one_step()
    while one_step():
        pass
    return model, history, emitted


@settings(max_examples=250, deadline=None)
@given(REQUESTS, st.sampled_from([48, 64, 100, 400]))
def test_invariants_hold_whatever_comes(plan, capacity_tokens):
    model, history, emitted = play(plan, capacity_tokens)
    stats = model.stats()
    assert stats.finished + stats.aborted == stats.arrived == len(plan)
    assert stats.kv_usage == 0
    assert model.cache.used_blocks == 0
    assert stats.generated_tokens == sum(emitted.values())
    finished = {name for _, result in history for name in result.finished}
    for name in finished:
        assert emitted[name] == plan[int(name)][2]
    if not stats.preempted and not stats.aborted:
        assert stats.prompt_tokens == stats.cached_tokens + stats.prefill_tokens


@settings(max_examples=40, deadline=None)
@given(REQUESTS)
def test_equal_inputs_give_equal_histories(plan):
    assert play(plan, 48)[1] == play(plan, 48)[1]
