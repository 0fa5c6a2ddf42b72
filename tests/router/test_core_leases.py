"""Leases are counted exactly once, whatever the order of events."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.leases import LeaseBook, common_prefix

KEYS = [("a", 0), ("a", 1), ("b", 0)]
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["acquire", "prefill_done", "release"]), st.integers(0, 30)),
    max_size=80,
)


class Model:
    """What the book should say, kept the slow way."""

    def __init__(self):
        self.open = {}  # lease -> still prefilling

    def in_flight(self, key):
        return sum(lease.key == key for lease in self.open)

    def most_pending(self, key):
        return sum(
            lease.uncached_tokens
            for lease, ahead in self.open.items()
            if ahead and lease.key == key
        )


@given(ACTIONS, st.floats(1, 1e5))
def test_book_agrees_with_a_naive_one_and_nothing_goes_negative(actions, rate):
    book, model, leases = LeaseBook(), Model(), []
    for now_s, (action, number) in enumerate(actions):
        if action == "acquire":
            lease = book.acquire(KEYS[number % 3], 100.0 * number, (), float(now_s))
            leases.append(lease)
            model.open[lease] = True
        elif leases:
            lease = leases[number % len(leases)]
            getattr(lease, action)(float(now_s))
            if action == "release":
                model.open.pop(lease, None)
            elif lease in model.open:
                model.open[lease] = False
        assert book.open_leases() == len(model.open)
        for key in KEYS:
            load = book.load(key)
            pending = load.pending_tokens(float(now_s), rate)
            assert load.in_flight == model.in_flight(key)
            assert 0 <= pending <= model.most_pending(key) + 1e-6
    for lease in leases:
        lease.release(1e6)
        lease.release(1e6)
    assert book.open_leases() == 0
    assert all(book.load(key).pending_tokens(1e6, rate) == 0 for key in KEYS)


def test_the_oldest_prefill_counts_as_partly_done():
    book = LeaseBook()
    first = book.acquire(("a", 0), 1000, (), 0.0)
    book.acquire(("a", 0), 500, (), 0.0)
    load = book.load(("a", 0))
    assert load.pending_tokens(0.0, 100.0) == 1500
    assert load.pending_tokens(4.0, 100.0) == 1100
    assert load.pending_tokens(60.0, 100.0) == 500  # never by more than its own size
    first.prefill_done(60.0)
    assert load.pending_tokens(61.0, 100.0) == 400


def test_a_prompt_under_way_will_be_in_the_cache():
    book = LeaseBook()
    lease = book.acquire(("a", 0), 10, [1, 2, 3], 0.0)
    assert book.pending_match(("a", 0), [1, 2, 9]) == 2
    assert book.pending_match(("b", 0), [1, 2, 9]) == 0
    lease.prefill_done(1.0)
    assert book.pending_match(("a", 0), [1, 2, 9]) == 0


STEPS = st.lists(st.integers(0, 2), max_size=40)


def chain(steps):
    hashes, seed = [], 0
    for step in steps:
        seed = hash((seed, step))
        hashes.append(seed)
    return hashes


def equal_steps(left, right):
    pairs = zip(left, right, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


@given(STEPS, STEPS)
def test_common_prefix_of_chains_agrees_with_counting(left, right):
    assert common_prefix(chain(left), chain(right)) == equal_steps(left, right)


@given(st.lists(STEPS, max_size=6), STEPS)
def test_the_deepest_of_the_prompts_under_way_counts(under_way, asked):
    book = LeaseBook()
    for steps in under_way:
        book.acquire(("a", 0), 1, chain(steps), 0.0)
    deepest = max((equal_steps(steps, asked) for steps in under_way), default=0)
    assert book.pending_match(("a", 0), chain(asked)) == deepest


def test_prompts_whose_first_token_is_never_seen_are_worked_off_one_after_the_other():
    book = LeaseBook()
    for _ in range(3):
        book.acquire(("a", 0), 1000, (), 0.0, streams=False)
    load = book.load(("a", 0))
    assert load.pending_tokens(0.0, 1000.0) == 3000
    assert load.pending_tokens(1.5, 1000.0) == 1500
    assert load.pending_tokens(9.0, 1000.0) == 0


def test_a_streamed_prompt_that_has_shown_no_token_holds_up_those_behind_it():
    book = LeaseBook()
    book.acquire(("a", 0), 1000, (), 0.0, streams=False)
    book.acquire(("a", 0), 1000, (), 0.0)
    book.acquire(("a", 0), 1000, (), 0.0, streams=False)
    assert book.load(("a", 0)).pending_tokens(9.0, 1000.0) == 1000
