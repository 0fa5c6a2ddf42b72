import pytest

from bench.engine.profiles import PROFILES, prefill_pairs

# (profile, tokens, pairs, context tokens) -> ms, worked out by hand from the published table.
GOLDEN = [
    ("llama-8b-a100", 8192, prefill_pairs(8192, 0), 0, 1.5 + 6.9 + 548.0448 + 93.952409),
    ("llama-8b-h100", 1, 0.0, 1000, 1.5 + 7.0 + 0.049),
    ("llama-70b-h100-tp4", 64, 0.0, 64 * 4096, 1.5 + 16.5 + 8.126464),
    ("llama-70b-h100-tp4", 8192, prefill_pairs(8192, 8192), 0, 1.5 + 10 + 573.44 + 120.795955),
    ("llama-70b-h100-tp8", 512, prefill_pairs(512, 1024), 0, 1.5 + 29.392 + 0.393216),
    ("llama-70b-a100-tp4", 100, prefill_pairs(36, 0), 64000, 1.5 + 37.6 + 0.002268 + 3.2),
    ("qwen3-32b-h100-tp2", 2048, prefill_pairs(2048, 0), 0, 1.5 + 4 + 99.9424 + 2.097152),
]


@pytest.mark.parametrize(("name", "tokens", "pairs", "context", "expected_ms"), GOLDEN)
def test_step_time_matches_the_published_formula(name, tokens, pairs, context, expected_ms):
    assert PROFILES[name].step_s(tokens, pairs, context) * 1e3 == pytest.approx(expected_ms)


def test_chunks_of_a_prompt_add_up_to_the_whole():
    whole = prefill_pairs(3000, 0)
    assert prefill_pairs(1000, 0) + prefill_pairs(2000, 1000) == whole


def test_six_profiles_are_published():
    assert set(PROFILES) == {
        "llama-8b-a100",
        "llama-8b-h100",
        "llama-70b-h100-tp4",
        "llama-70b-h100-tp8",
        "llama-70b-a100-tp4",
        "qwen3-32b-h100-tp2",
    }
