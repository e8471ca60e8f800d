"""In which order rows are read: a keyed permutation of 0 .. n-1 that is computed, never stored.

Comes in: how many things there are and a key. Goes out: for any position the thing that stands there.
State: none. Cost: eight 64-bit round keys whatever n is; about 0.1 microseconds an index in blocks.

How: position ``i`` is split into (i // b, i % b) with b about the square root of n, and eight times one
half is moved round by a keyed hash of the other half. Each such move can be undone, so the whole is
one-to-one on a * b >= n positions, of which fewer than a lie beyond n; what lands there is sent through
again until it lands below n, which keeps it one-to-one on n.

The key is a hash of (seed, epoch, purpose), so an epoch's order says nothing about the next one's, and
no rank, worker or restart can see another order. It shuffles; it hides nothing from anyone who looks.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Protocol

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

_ROUNDS = 8
_MAX_SIZE = 2**60
_MASK = 2**64 - 1
#: Blocks whose rows are shuffled together.
_MIXED_BLOCKS = 16
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB


class RowOrder(Protocol):
    """Which of n things stands at a position; each thing stands somewhere once."""

    def at(self, position: int) -> int:
        """One index."""

    def take(self, positions: Indices) -> Indices:
        """Many at once, the same as ``at`` of each."""


def permutation_key(seed: int, epoch: int, purpose: str) -> bytes:
    """64 bytes that change altogether with any of the three. Seeds may be any whole number."""
    return hashlib.blake2b(f"{purpose}\0{seed}\0{epoch}".encode(), digest_size=8 * _ROUNDS).digest()


def row_order(
    seed: int,
    epoch: int,
    num_rows: int,
    shuffle: bool | str,
    *,
    block_rows: int = 1,
    purpose: str = "rows",
) -> RowOrder:
    """The order of the rows in one epoch.

    Args:
        shuffle: True: any row anywhere; "blocks": see ``BlockOrder``; False: as they lie.
        block_rows: neighbouring rows of a block.
        purpose: another one is another order of the same seed.
    """
    if not shuffle:
        return AsTheyLie(num_rows)
    if shuffle == "blocks":
        return BlockOrder(num_rows, block_rows, seed, epoch, purpose)
    return Permutation(num_rows, permutation_key(seed, epoch, purpose))


class AsTheyLie:
    """The order in which things are numbered."""

    def __init__(self, n: int) -> None:
        self.n = n

    def at(self, position: int) -> int:
        _check_position(position, self.n)
        return position

    def take(self, positions: Indices) -> Indices:
        _check_positions(positions, self.n)
        return positions.astype(np.int64)


class Permutation:
    """A one-to-one map of 0 .. n-1 onto itself, chosen by ``key`` (64 bytes, see ``permutation_key``)."""

    def __init__(self, n: int, key: bytes) -> None:
        if not 1 <= n <= _MAX_SIZE:
            raise ValueError(f"a permutation of {n} things; it must be 1 to 2**60")
        if len(key) != 8 * _ROUNDS:
            raise ValueError(f"a key of {len(key)} bytes, not {8 * _ROUNDS}")
        self.n = n
        self._high = math.isqrt(n - 1) + 1
        self._low = -(-n // self._high)
        self._keys = struct.unpack(f"<{_ROUNDS}Q", key)

    def at(self, position: int) -> int:
        """The index at ``position``.

        Raises:
            IndexError: not below n.
        """
        _check_position(position, self.n)
        value = self._once(position)
        while value >= self.n:
            value = self._once(value)
        return value

    def take(self, positions: Indices) -> Indices:
        """The indices at many positions: int64, same shape.

        Raises:
            IndexError: a position not below n.
        """
        _check_positions(positions, self.n)
        values = self._once_each(positions.astype(np.uint64))
        while (beyond := values >= np.uint64(self.n)).any():
            values[beyond] = self._once_each(values[beyond])
        return values.astype(np.int64)

    def _once(self, value: int) -> int:
        high, low = divmod(value, self._low)
        for number, key in enumerate(self._keys):
            if number % 2:
                low = (low + _scaled_hash(high, key, self._low)) % self._low
            else:
                high = (high + _scaled_hash(low, key, self._high)) % self._high
        return high * self._low + low

    def _once_each(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        high, low = np.divmod(values, np.uint64(self._low))
        for number, key in enumerate(self._keys):
            if number % 2:
                _move_round(low, high, key, self._low)
            else:
                _move_round(high, low, key, self._high)
        return high * np.uint64(self._low) + low


class BlockOrder:
    """Rows shuffled within a few blocks of neighbours at a time: nearly sequential reads.

    The rows, turned by a random amount so that no block border is the same in two epochs, are cut into
    blocks; blocks come in random order, and the rows of every 16 that follow one another are shuffled
    together. A corpus of up to 16 blocks is so shuffled as a whole.
    """

    def __init__(self, n: int, block_rows: int, seed: int, epoch: int, purpose: str) -> None:
        self.n = n
        self._block_rows = block_rows
        self._seed, self._epoch, self._purpose = seed, epoch, purpose
        self._whole = n // block_rows
        self._turn = Permutation(n, permutation_key(seed, epoch, f"{purpose} turned")).at(0)
        key = permutation_key(seed, epoch, f"{purpose} blocks")
        self._blocks = Permutation(self._whole, key) if self._whole else None
        self._mixed_rows = _MIXED_BLOCKS * block_rows

    def at(self, position: int) -> int:
        _check_position(position, self.n)
        return int(self.take(np.array([position], dtype=np.int64))[0])

    def take(self, positions: Indices) -> Indices:
        _check_positions(positions, self.n)
        groups = positions // self._mixed_rows
        rows = np.empty_like(positions)
        for group in np.unique(groups).tolist():
            here = groups == group
            first = group * self._mixed_rows
            size = min(self._mixed_rows, self.n - first)
            key = permutation_key(self._seed, self._epoch, f"{self._purpose} mixed {group}")
            rows[here] = first + Permutation(size, key).take(positions[here] - first)
        slots, within = np.divmod(rows, self._block_rows)
        blocks = slots.copy()  # the last, short block stands last
        if self._blocks is not None:
            whole = slots < self._whole
            blocks[whole] = self._blocks.take(slots[whole])
        turned: Indices = (blocks * self._block_rows + within + self._turn) % self.n
        return turned


def _scaled_hash(value: int, key: int, size: int) -> int:
    """A hash of ``value`` below ``size``. The same arithmetic, bit for bit, as ``_move_round``'s."""
    mixed = (value + key) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * _MULTIPLY_1) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * _MULTIPLY_2) & _MASK
    return ((mixed >> 32) * size) >> 32


def _move_round(moved: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64], key: int, size: int) -> None:
    """``moved = (moved + hash(other)) % size``, in place. ``moved`` is below ``size``, so one subtraction
    does for the remainder; multiplying the upper half and keeping what overflows it scales without one."""
    mixed = other + np.uint64(key)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(_MULTIPLY_1)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_MULTIPLY_2)
    mixed >>= np.uint64(32)
    mixed *= np.uint64(size)
    mixed >>= np.uint64(32)
    moved += mixed
    np.subtract(moved, np.uint64(size), out=moved, where=moved >= np.uint64(size))


def _check_position(position: int, n: int) -> None:
    if not 0 <= position < n:
        raise IndexError(f"position {position} of {n}")


def _check_positions(positions: Indices, n: int) -> None:
    if positions.size and (int(positions.min()) < 0 or int(positions.max()) >= n):
        raise IndexError(f"positions {positions.min()} to {positions.max()} of {n}")
