"""The order of one publisher's batches, driven without sockets."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.relay.sequence import Ask, Deliver, Missing, Reset, SequenceMerger


class Item(msgspec.Struct, frozen=True):
    life: int
    seq: int
    ts: float


def item(seq, life=0):
    return Item(life, seq, life * 1000.0 + seq)


def delivered(actions):
    return [action.item.seq for action in actions if isinstance(action, Deliver)]


def others(actions):
    return [action for action in actions if not isinstance(action, Deliver)]


def replay(merger, *seqs, life=0, complete=True):
    actions = []
    for seq in seqs:
        actions += merger.replayed(seq, item(seq, life))
    return actions + merger.replay_ended(complete=complete)


def live(merger, *seqs, life=0):
    return [action for seq in seqs for action in merger.live(seq, item(seq, life))]


def following(upto):
    """A merger that has everything before `upto` by replay."""
    merger = SequenceMerger(can_replay=True)
    assert merger.begin() == [Ask(0)]
    assert delivered(replay(merger, *range(upto))) == list(range(upto))
    return merger


def test_live_waits_for_the_replay_and_both_join():
    merger = SequenceMerger(can_replay=True)
    merger.begin()
    assert live(merger, 3, 4) == []
    actions = replay(merger, 0, 1, 2, 3)
    assert delivered(actions) == [0, 1, 2, 3, 4]
    assert others(actions) == []
    assert delivered(live(merger, 5)) == [5]


def test_batches_that_come_both_ways_are_delivered_once():
    merger = following(3)
    assert live(merger, 1, 2) == []
    assert merger.take_duplicates() == 2
    assert delivered(live(merger, 3)) == [3]


def test_gap_asks_from_the_last_known_batch():
    merger = following(3)
    assert live(merger, 5) == [Ask(0)]
    assert delivered(replay(merger, 2, 3, 4, 5)) == [3, 4, 5]


def test_replay_with_a_hole_is_asked_for_again():
    merger = following(3)
    live(merger, 7)
    actions = replay(merger, 2, 3, 5, 6, 7)
    assert delivered(actions) == [3]
    assert others(actions) == [Ask(0)]
    assert delivered(replay(merger, 3, 4, 5, 6, 7)) == [4, 5, 6, 7]


def test_trimmed_buffer_starts_over_with_what_is_left():
    merger = following(3)
    live(merger, 9)
    assert merger.replayed(7, item(7)) == [Reset("gap"), Ask(0)]
    actions = replay(merger, 7, 8, 9)
    assert others(actions) == [Missing(7)]
    assert delivered(actions) == [7, 8, 9]


def test_rollback_on_the_live_socket_is_a_restart():
    merger = following(3)
    live(merger, 3)
    assert live(merger, 0, life=1) == [Reset("restart"), Ask(0)]
    assert delivered(replay(merger, 0, life=1)) == [0]


def test_restart_before_the_first_live_batch_shows_in_the_time_stamp():
    merger = following(5)
    assert live(merger, 0, life=1) == [Reset("restart"), Ask(0)]


def test_restart_hidden_behind_a_gap_shows_in_the_replay():
    merger = following(5)
    live(merger, 5)
    assert live(merger, 8, life=1) == [Ask(0)]
    assert merger.replayed(5, item(5, 1)) == [Reset("restart"), Ask(0)]
    actions = replay(merger, *range(9), life=1)
    assert delivered(actions) == list(range(9))
    assert others(actions) == []


def test_new_life_that_went_on_with_the_old_numbers_is_told_by_earlier_ones():
    merger = following(5)
    assert delivered(live(merger, 5, 6, life=1)) == [5, 6]
    merger.suspect()
    assert merger.replayed(0, item(0, 1)) == [Reset("restart"), Ask(0)]


def test_only_the_last_batches_are_compared():
    merger = following(100)
    assert live(merger, 105) == [Ask(68)]
    assert delivered(replay(merger, *range(90, 106))) == list(range(100, 106))


def test_suspicion_is_checked_and_cleared():
    merger = following(5)
    assert merger.suspect() == [Ask(0)]
    assert replay(merger, 4) == []
    assert merger.suspect() == [Ask(0)]
    assert merger.replay_ended(complete=True) == [Reset("restart"), Ask(0)]


def test_live_batches_wait_while_a_suspicion_is_checked():
    merger = following(5)
    merger.suspect()
    assert live(merger, 5) == []
    assert delivered(replay(merger, 4, 5)) == [5]


def test_recheck_finds_a_lost_last_batch():
    merger = following(5)
    assert merger.recheck() == [Ask(0)]
    assert merger.recheck() == []
    assert delivered(replay(merger, 4, 5)) == [5]


def test_broken_replay_is_tried_again_then_given_up():
    merger = following(3)
    live(merger, 5)
    assert replay(merger, 2, complete=False) == [Ask(0)]
    assert replay(merger, 2, complete=False) == [Ask(0)]
    actions = replay(merger, 2, complete=False)
    assert others(actions) == [Reset("gap")]
    assert delivered(actions) == [5]
    assert not merger.asking


def test_first_replay_is_asked_for_until_it_works():
    merger = SequenceMerger(can_replay=True)
    merger.begin()
    for _ in range(10):
        assert merger.replay_ended(complete=False) == [Ask(0)]
    assert delivered(replay(merger, 0)) == [0]


def test_waiting_batches_are_bounded():
    merger = SequenceMerger(can_replay=True, max_waiting=3)
    merger.begin()
    assert live(merger, 5, 6, 7) == []
    actions = live(merger, 8)
    assert others(actions) == [Missing(5)]
    assert delivered(actions) == [5, 6, 7, 8]
    assert not merger.asking


def test_without_replay_history_and_gaps_are_lost():
    merger = SequenceMerger(can_replay=False)
    assert merger.begin() == []
    assert merger.recheck() == []
    assert others(live(merger, 4)) == [Missing(4)]
    actions = live(merger, 7)
    assert others(actions) == [Reset("gap")]
    assert delivered(actions) == [7]
    assert others(live(merger, 0, life=1)) == [Reset("restart")]
    assert merger.suspect() == [Reset("restart")]
    assert delivered(live(merger, 1, life=1)) == [1]


class Engine:
    """A publisher with a replay buffer and a live socket that may lose messages."""

    def __init__(self, buffer):
        self.life, self.buffer_size, self.clock = 0, buffer, 0.0
        self.restart()

    def restart(self):
        self.life += 1
        self.next, self.buffer = 0, []

    def publish(self):
        self.clock += 1.0
        made = Item(self.life, self.next, self.clock)
        self.next += 1
        self.buffer = [*self.buffer, made][-self.buffer_size :]
        return made


class Consumer:
    """Carries out the merger's wishes and checks that what it delivers makes sense."""

    def __init__(self, engine, merger):
        self.engine, self.merger = engine, merger
        self.content, self.ask = [], None

    def act(self, actions):
        for action in actions:
            match action:
                case Deliver(made):
                    last = self.content[-1] if self.content else None
                    assert last is None or (last.life, last.seq + 1) == (made.life, made.seq)
                    self.content.append(made)
                case Ask(start):
                    self.ask = start
                case Reset():
                    self.content = []
                case Missing():
                    assert not self.content
        if not self.merger.asking:
            self.ask = None

    def answer(self, *, complete, drops):
        """One reply to the pending request, in which the frames in `drops` are lost."""
        mine = self.ask
        frames = [made for made in self.engine.buffer if made.seq >= mine]
        self.ask = None
        for index, made in enumerate(frames):
            if index in drops:
                continue
            self.act(self.merger.replayed(made.seq, made))
            if self.ask is not None or not self.merger.asking:
                return
        self.act(self.merger.replay_ended(complete=complete))


def perform(step, engine, consumer):
    merger = consumer.merger
    if step in ("restart", "crash"):
        engine.restart()
    if step in ("live", "crash"):
        made = engine.publish()
        consumer.act(merger.live(made.seq, made))
    elif step == "lost":
        engine.publish()
    elif step in ("restart", "suspect"):
        consumer.act(merger.suspect())
    elif consumer.ask is not None:
        drops = step if isinstance(step, frozenset) else frozenset()
        consumer.answer(complete=step != "broken", drops=drops)


@given(
    script=st.lists(
        st.one_of(
            st.sampled_from(
                ["live", "live", "lost", "restart", "crash", "answer", "broken", "suspect"]
            ),
            st.frozensets(st.integers(1, 8), max_size=2),
        ),
        max_size=60,
    ),
    buffer=st.integers(1, 8),
    can_replay=st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_never_out_of_order_and_in_the_end_complete(script, buffer, can_replay):
    engine = Engine(buffer)
    merger = SequenceMerger(can_replay=can_replay, max_waiting=10)
    consumer = Consumer(engine, merger)
    consumer.act(merger.begin())
    for step in script:
        perform(step, engine, consumer)
    if not can_replay:
        return
    consumer.act(merger.suspect())
    rounds = 0
    while consumer.ask is not None:
        consumer.answer(complete=True, drops=frozenset())
        rounds += 1
        assert rounds < 10
    made = engine.publish()
    consumer.act(merger.live(made.seq, made))
    while consumer.ask is not None:
        consumer.answer(complete=True, drops=frozenset())
    assert consumer.content[-len(engine.buffer) :] == engine.buffer
