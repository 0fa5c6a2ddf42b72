import pytest

from bench.traces.arrivals import BIN_S, cut, pace, smooth, span_s
from bench.traces.record import TraceError, TraceRequest


def request(arrival_s, name=0):
    return TraceRequest(arrival_s, 10, 1, (name,), 512, name)


BINNED = [request(t, n) for n, t in enumerate((0, 0, 0, 2.999, 3.0, 6.001, 6.001))]


def test_as_recorded_changes_nothing():
    assert smooth(BINNED, "as-recorded", seed=1) == BINNED


def test_spread_keeps_order_and_bin_and_is_seeded():
    spread = smooth(BINNED, "spread", seed=1)
    assert [r.session for r in spread] == [r.session for r in BINNED]
    times = [r.arrival_s for r in spread]
    assert times == sorted(times)
    assert len(set(times)) == len(times)
    assert [int(t // BIN_S) for t in times] == [0, 0, 0, 1, 1, 2, 2]
    assert smooth(BINNED, "spread", seed=1) == spread
    assert smooth(BINNED, "spread", seed=2) != spread


def test_cut_starts_the_clock_anew():
    assert [r.arrival_s for r in cut(BINNED, 4, 2)] == [0.0, pytest.approx(3.001)]
    with pytest.raises(TraceError, match="trace has 7"):
        cut(BINNED, 6, 2)


def test_pace_divides_time():
    assert [r.arrival_s for r in pace([request(0), request(6)], 3.0)] == [0.0, 2.0]


def test_span_counts_the_gap_after_the_last_arrival():
    assert span_s([request(0), request(2), request(4)]) == 6.0
    assert span_s([request(5)]) == 0.0
