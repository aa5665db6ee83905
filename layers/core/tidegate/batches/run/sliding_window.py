"""Which items of a batch are done: all below an offset, and some of the window above it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowState:
    """The window as it is stored. Bit k of the bitmap, lowest first, stands for item offset + k."""

    offset: int
    bitmap: bytes = b""

    @property
    def acknowledged(self) -> int:
        """How many items above the offset are done."""
        return int.from_bytes(self.bitmap, "little").bit_count()


class SlidingWindow:
    """Hands out indexes while the window has room; they are acknowledged in any order.

    The offset moves only past a contiguous prefix. What it holds grows with the window, never with the total.
    """

    def __init__(self, total: int, size: int, start: WindowState, *, complete: bool = True) -> None:
        """Not `complete`: more items may be found behind the total, and `extend` tells of them."""
        if size < 1:
            raise ValueError("a window holds at least one item")
        self._total = total
        self._complete = complete
        self._size = size
        self.offset = start.offset
        self._next = start.offset
        self._held: set[int] = set()
        self._above = {start.offset + place for place in _set_bits(start.bitmap)}

    @property
    def done(self) -> bool:
        return self._complete and self.offset >= self._total

    @property
    def position(self) -> int:
        """How many items are done, those above the offset included."""
        return self.offset + len(self._above)

    def resize(self, size: int) -> None:
        """A smaller window takes back nothing that was handed out; it only waits longer."""
        self._size = max(1, size)

    def extend(self, total: int, *, complete: bool) -> None:
        self._total, self._complete = total, complete

    def peek(self) -> int | None:
        """The index that `take` would hand out."""
        # After a resume the offset may pass what was acknowledged before, all at once.
        self._next = max(self._next, self.offset)
        while self._next in self._above or self._next in self._held:
            self._next += 1
        return self._next if self._next < min(self.offset + self._size, self._total) else None

    def room(self, most: int) -> int:
        """How many indexes `take` has to hand out, at most `most`; after a resume some of them may be done already."""
        if self.peek() is None:
            return 0
        return min(most, min(self.offset + self._size, self._total) - self._next)

    def hold(self, index: int) -> bool:
        """Keeps an index back that is still open from before: `take` does not hand it out. False if it is done."""
        if self.is_done(index) or (self._complete and index >= self._total):
            return False
        self._held.add(index)
        return True

    def is_done(self, index: int) -> bool:
        return index < self.offset or index in self._above

    def take(self) -> int | None:
        index = self.peek()
        if index is not None:
            self._next = index + 1
        return index

    def acknowledge(self, index: int) -> None:
        if index >= max(self._next, self.offset) and index not in self._held:
            raise ValueError(f"item {index} was never handed out")
        if index < self.offset:
            return
        self._held.discard(index)
        self._above.add(index)
        while self.offset in self._above:
            self._above.remove(self.offset)
            self.offset += 1

    def state(self) -> WindowState:
        if not self._above:
            return WindowState(self.offset)
        field = bytearray((max(self._above) - self.offset) // 8 + 1)
        for index in self._above:
            place = index - self.offset
            field[place >> 3] |= 1 << (place & 7)
        return WindowState(self.offset, bytes(field))


def _set_bits(bitmap: bytes) -> list[int]:
    return [8 * at + bit for at, byte in enumerate(bitmap) if byte for bit in range(8) if byte >> bit & 1]
