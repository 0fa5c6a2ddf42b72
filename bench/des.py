"""The discrete-event kernel: a heap of (time, sequence, callback), and a clock that jumps."""

import heapq
from collections.abc import Callable
from itertools import count

Callback = Callable[[], None]


class Simulation:
    """Runs callbacks in order of time; of equal times, in the order they were scheduled."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callback]] = []
        self._sequence = count()

    def at(self, time_s: float, callback: Callback) -> None:
        """Schedules a callback.

        Raises:
            ValueError: the time is past.
        """
        if time_s < self.now_s:
            raise ValueError(f"cannot schedule at {time_s} s, it is {self.now_s} s")
        heapq.heappush(self._heap, (time_s, next(self._sequence), callback))

    def after(self, delay_s: float, callback: Callback) -> None:
        self.at(self.now_s + delay_s, callback)

    def run(self, until_s: float = float("inf")) -> None:
        """Runs until nothing is left, or the next callback lies behind `until_s`."""
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, callback = heapq.heappop(self._heap)
            callback()
