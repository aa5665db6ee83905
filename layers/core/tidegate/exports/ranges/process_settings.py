"""Settings of the process in which a range worker runs: they keep its memory level and its requests prompt."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

# mallopt's M_MMAP_THRESHOLD.
_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1024 * 1024
# Python lets a thread wait 5 ms for its turn while another computes.
_SWITCH_SECONDS = 0.0005


def set_up_process() -> None:
    """Call it once before pulling and rendering; calling it again changes nothing."""
    # glibc raises the size from which it maps a block of its own each time one is freed. Fragments then grow on
    # the heap, between smaller blocks, and leave holes: a worker took 22 MB more after 5 million rows than after
    # 200,000. With a fixed limit each fragment is mapped, grows without being copied, and is given back when sent.
    with suppress(OSError, AttributeError):
        # A C library without mallopt has no such limit either.
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
    # A page that has arrived is to be followed by the next request at once, although rows are being rendered.
    sys.setswitchinterval(min(_SWITCH_SECONDS, sys.getswitchinterval()))
