"""Which items of a runner are done: all below an offset, and some in the window above it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowState:
    """The window as stored. Bit k of the bitmap, lowest first, is item offset + k."""

    offset: int
    bitmap: bytes = b""

    @property
    def acknowledged(self) -> int:
        """The number of items above the offset that are done."""
        return int.from_bytes(self.bitmap, "little").bit_count()


class SlidingWindow:
    """Hands out indexes while the window has room. They may be acknowledged in any order.

    The offset moves only past items that are all done. Memory depends on the size of the window, not on the total.
    """

    def __init__(self, total: int, size: int, start: WindowState, *, complete: bool = True) -> None:
        """With `complete` false, `extend` may add items later."""
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
    def exhausted(self) -> bool:
        """Whether all items known so far were handed out, and more may be found."""
        return not self._complete and self.peek() is None and self._next < self.offset + self._size

    @property
    def position(self) -> int:
        """The number of items done, including those above the offset."""
        return self.offset + len(self._above)

    def resize(self, size: int) -> None:
        """A smaller window does not affect indexes that were already handed out."""
        self._size = max(1, size)

    def extend(self, total: int, *, complete: bool) -> None:
        self._total, self._complete = total, complete

    def peek(self) -> int | None:
        """The index that `take` would hand out."""
        # After a resume, one acknowledgement may move the offset past many items that were done before.
        self._next = max(self._next, self.offset)
        while self._next in self._above or self._next in self._held:
            self._next += 1
        return self._next if self._next < min(self.offset + self._size, self._total) else None

    def room(self, most: int) -> int:
        """An upper bound, at most `most`, for the indexes that `take` can hand out; after a resume some may be done."""
        if self.peek() is None:
            return 0
        return min(most, min(self.offset + self._size, self._total) - self._next)

    def hold(self, index: int) -> bool:
        """Reserves an index that is still open from an earlier slice: `take` skips it. False if the item is done."""
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
