"""A hash table from block hashes to small numbers, in arrays and probed a batch at a time.

Each look-up in a large table misses the processor's cache. One look-up after the other, as in a
dictionary, waits for each miss; a whole batch gathered at once overlaps them. Block hashes are
uniform already, so their low bits choose a bucket of eight keys, 64 bytes, one cache line.

Keys whose bucket is full go to an overflow dictionary; a bucket that has ever sent one there is
marked, so that misses elsewhere need not ask. At three eighths full the number of buckets doubles,
and each later change moves some old buckets: a key stays in its place within the bucket
and moves to the bucket above or does not, so nobody ever waits for a whole rehash.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]
Values = npt.NDArray[np.uint32]

_WAYS: Final = 8
_WAY_BITS: Final = 3
_FILL: Final = 0.375  # keys per place at which the buckets double: 1 key in 2,500 overflows
# Old buckets moved while growing, at least and for each new key. More than one for each key ends
# the move long before the buckets double again.
_MOVE_LEAST: Final = 64
_MOVE_PER_KEY: Final = 8
ABSENT: Final = -1


class BlockTable:
    """Keys are unsigned 64-bit, values unsigned 32-bit; neither is 0, which marks free places.

    Positions name places of present keys. They hold until the next `insert`.

    Args:
        buckets: number of buckets to begin with, a power of two.
        overflow_places: room for keys whose bucket is full, at least 1; it grows as needed.
    """

    def __init__(self, buckets: int = 1024, overflow_places: int = 256) -> None:
        self._buckets = buckets  # of the finished size
        self._moved = buckets  # old buckets moved so far; `buckets` while not growing
        self._keys = np.zeros((buckets, _WAYS), np.uint64)
        self._flat_keys = self._keys.reshape(-1)
        self._values = np.zeros(buckets * _WAYS, np.uint32)
        self._spilled = np.zeros(buckets, np.bool_)
        self._overflow: dict[int, int] = {}  # key -> place in the overflow
        self._overflow_keys = np.zeros(overflow_places, np.uint64)
        self._overflow_values = np.zeros(overflow_places, np.uint32)
        self._overflow_free = list(range(overflow_places))
        self.count = 0

    # --- reading ----------------------------------------------------------------------------

    def find(self, keys: Hashes) -> Positions:
        """Place of each key, `ABSENT` where there is none.

        Keys in the overflow get places below `ABSENT`: -2 is the first.
        """
        buckets = self._bucket_of(keys)
        hits = (self._keys.take(buckets, axis=0) == keys[:, None]).ravel().nonzero()[0]
        if len(hits) == len(keys):
            everywhere: Positions = (buckets << _WAY_BITS) | (hits & (_WAYS - 1))
            return everywhere
        found = hits >> _WAY_BITS
        positions = np.full(len(keys), ABSENT, np.int64)
        positions[found] = (buckets[found] << _WAY_BITS) | (hits & (_WAYS - 1))
        if self._overflow:
            for i in self._may_have_spilled(positions == ABSENT, buckets).tolist():
                place = self._overflow.get(int(keys[i]))
                if place is not None:
                    positions[i] = -2 - place
        return positions

    def values_at(self, positions: Positions) -> Values:
        """Values of present keys."""
        if self._overflow and len(positions) and int(positions.min()) < ABSENT:
            spilled = positions < ABSENT
            values = self._values.take(np.where(spilled, 0, positions))
            values[spilled] = self._overflow_values.take(-2 - positions[spilled])
            return values
        return self._values.take(positions)

    def look_up(self, keys: Hashes) -> Values:
        """Value of each key, 0 where absent."""
        buckets = self._bucket_of(keys)
        hits = (self._keys.take(buckets, axis=0) == keys[:, None]).ravel().nonzero()[0]
        if len(hits) == len(keys):
            everywhere: Values = self._values.take((buckets << _WAY_BITS) | (hits & (_WAYS - 1)))
            return everywhere
        found = hits >> _WAY_BITS
        values: Values = np.zeros(len(keys), np.uint32)
        values[found] = self._values.take((buckets[found] << _WAY_BITS) | (hits & (_WAYS - 1)))
        if self._overflow:
            for i in self._may_have_spilled(values == 0, buckets).tolist():
                place = self._overflow.get(int(keys[i]))
                if place is not None:
                    values[i] = self._overflow_values[place]
        return values

    def keys_with(self, wanted: npt.NDArray[np.bool_]) -> Hashes:
        """All keys whose value v has `wanted[v]`; `wanted[0]` must be False."""
        chosen: Hashes = self._flat_keys[wanted.take(self._values)]
        spilled = [k for k, place in self._overflow.items() if wanted[self._overflow_values[place]]]
        return np.concatenate([chosen, np.array(spilled, np.uint64)]) if spilled else chosen

    # --- writing ----------------------------------------------------------------------------

    def insert(self, keys: Hashes, value: int) -> None:
        """Adds keys that are all absent and all different, each with `value`."""
        self._make_room(len(keys))
        self.count += len(keys)
        while len(keys):
            keys = self._claim(keys, value)

    def _claim(self, keys: Hashes, value: int) -> Hashes:
        """Puts keys into the first free place of their buckets; returns those left over.

        Of several keys of one batch that go for the same place the last one gets it, which reading
        back tells; the others try again. Keys of full buckets spill.
        """
        buckets = self._bucket_of(keys)
        ways = (self._keys.take(buckets, axis=0) == 0).argmax(axis=1)
        positions = (buckets << _WAY_BITS) | ways
        is_free = self._flat_keys.take(positions) == 0
        if not is_free.all():
            full = ~is_free
            self._spill(keys[full], buckets[full], value)
            keys, positions = keys[is_free], positions[is_free]
        self._flat_keys[positions] = keys
        self._values[positions] = value
        left: Hashes = keys[self._flat_keys.take(positions) != keys]
        return left

    def set_values(self, positions: Positions, values: Values) -> None:
        """Replaces the values of present keys; a value of 0 removes the key."""
        if self._overflow and len(positions) and int(positions.min()) < ABSENT:
            spilled = positions < ABSENT
            self._set_overflow(positions[spilled], values[spilled])
            positions, values = positions[~spilled], values[~spilled]
        self._values[positions] = values
        gone = positions[values == 0]
        self._flat_keys[gone] = 0
        self.count -= len(gone)

    # --- one key at a time ------------------------------------------------------------------

    def get(self, key: int) -> int:
        """The key's value, 0 where absent."""
        position = self._place_of(key)
        if position >= 0:
            return int(self._values[position])
        return 0 if position == ABSENT else int(self._overflow_values[-2 - position])

    def put(self, key: int, value: int) -> None:
        """Gives the key this value, whether present or not; 0 removes it."""
        position = self._place_of(key)
        if position >= 0:
            self._values[position] = value
            if not value:
                self._flat_keys[position] = 0
                self.count -= 1
        elif position < ABSENT:
            self._set_overflow(np.array([position]), np.array([value], np.uint32))
        elif value:
            self._insert_one(key, value)

    def _insert_one(self, key: int, value: int) -> None:
        self._make_room(1)
        bucket = self._bucket_of_one(key)
        row: list[int] = self._keys[bucket].tolist()
        self.count += 1
        if 0 in row:
            position = bucket << _WAY_BITS | row.index(0)
            self._flat_keys[position] = key
            self._values[position] = value
        else:
            self._spill(np.array([key], np.uint64), np.array([bucket]), value)

    def _place_of(self, key: int) -> int:
        bucket = self._bucket_of_one(key)
        row: list[int] = self._keys[bucket].tolist()
        if key in row:
            return bucket << _WAY_BITS | row.index(key)
        place = self._overflow.get(key) if self._spilled[bucket] else None
        return ABSENT if place is None else -2 - place

    def _bucket_of_one(self, key: int) -> int:
        bucket = key & (self._buckets - 1)
        half = self._buckets >> 1
        old = bucket & (half - 1)
        return old if self._moved < half and old >= self._moved else bucket

    # --- inside -----------------------------------------------------------------------------

    @property
    def _places(self) -> int:
        return self._buckets * _WAYS

    def _bucket_of(self, keys: Hashes) -> Positions:
        buckets = (keys & np.uint64(self._buckets - 1)).view(np.int64)
        half = self._buckets >> 1
        if self._moved < half:  # growing: buckets not moved yet are still found at their old place
            old = buckets & (half - 1)
            return np.where(old < self._moved, buckets, old)
        return buckets

    def _may_have_spilled(self, missing: npt.NDArray[np.bool_], buckets: Positions) -> Positions:
        chosen: Positions = (missing & self._spilled.take(buckets)).nonzero()[0]
        return chosen

    def _spill(self, keys: Hashes, buckets: Positions, value: int) -> None:
        self._spilled[buckets] = True
        for key in keys.tolist():
            if not self._overflow_free:
                self._grow_overflow()
            place = self._overflow_free.pop()
            self._overflow[key] = place
            self._overflow_keys[place] = key
            self._overflow_values[place] = value

    def _set_overflow(self, positions: Positions, values: Values) -> None:
        places = -2 - positions
        self._overflow_values[places] = values
        for place in places[values == 0].tolist():
            del self._overflow[int(self._overflow_keys[place])]
            self._overflow_free.append(place)
            self.count -= 1

    def _grow_overflow(self) -> None:
        size = len(self._overflow_values)
        self._overflow_keys = np.resize(self._overflow_keys, 2 * size)
        self._overflow_values = np.resize(self._overflow_values, 2 * size)
        self._overflow_free = list(range(size, 2 * size))

    def _make_room(self, news: int) -> None:
        while self.count + news > _FILL * self._places:
            if self._is_growing:
                self._move(self._buckets)
            self._double()
        if self._is_growing:
            self._move(max(_MOVE_LEAST, _MOVE_PER_KEY * news))

    @property
    def _is_growing(self) -> bool:
        return self._moved < self._buckets >> 1

    def _double(self) -> None:
        """Twice the buckets, all keys still in the lower half."""
        old, self._buckets = self._buckets, 2 * self._buckets
        self._moved = 0
        keys = np.zeros((self._buckets, _WAYS), np.uint64)
        keys[:old] = self._keys
        self._keys, self._flat_keys = keys, keys.reshape(-1)
        self._values = np.concatenate([self._values, np.zeros(old * _WAYS, np.uint32)])
        self._spilled = np.concatenate([self._spilled, self._spilled])

    def _move(self, buckets: int) -> None:
        """Splits the next old buckets between themselves and the ones above."""
        half = self._buckets >> 1
        start, stop = self._moved, min(half, self._moved + buckets)
        low, high = slice(start, stop), slice(start + half, stop + half)
        keys = self._keys[low]
        values = self._values.reshape(-1, _WAYS)
        goes = (keys & np.uint64(half)) != 0
        self._keys[high] = np.where(goes, keys, 0)
        values[high] = np.where(goes, values[low], 0)
        keys[goes] = 0
        values[low][goes] = 0
        self._moved = stop
        if stop == half:
            self._moved = self._buckets
            self._take_back_overflow()

    def _take_back_overflow(self) -> None:
        """After growing there is room in the buckets for what had to go elsewhere."""
        spilled, self._overflow = self._overflow, {}
        self._overflow_free = list(range(len(self._overflow_values)))
        self._spilled[:] = False
        self.count -= len(spilled)
        by_value: dict[int, list[int]] = {}
        for key, place in spilled.items():
            by_value.setdefault(int(self._overflow_values[place]), []).append(key)
        for value, keys in by_value.items():
            self.insert(np.array(keys, np.uint64), value)
