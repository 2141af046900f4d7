"""Stopwatch that also measures how busy other processes keep the machine.

Times that the contract states hold on a machine that runs the gateway and its clients only. A
stopwatch therefore sums the CPU time of all cores, subtracts that of the test's own process tree
(the gateway under test runs below it), and reports what is left as the share taken by others,
including the hypervisor (steal). A thread that should wake often measures how long the machine
stood still: a slow disk or a paused virtual machine uses no CPU time.
"""

import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psutil

IDLE_SHARE = 0.1
"""Others may use so much of all cores' capacity on a machine that counts as idle."""

SAFETY = 6
"""On a machine that others use, a time fails only beyond so many times its bound."""

TICK_SECONDS = 0.05
MIN_STALL_SECONDS = 0.25
"""A thread that wakes this late was kept from it; shorter delays are usual under load."""

_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE_FIELDS = (3, 4)
_GUEST_FIELDS = (8, 9)
"""Fields of /proc/stat that are part of others already."""

Reading = tuple[float, float, float]
"""Wall clock, CPU time of the whole machine, and of the own process tree, in seconds."""


def read_machine() -> Reading:
    """Reads the clock and both CPU times; about 5 ms."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    busy = [
        int(ticks)
        for place, ticks in enumerate(fields)
        if place not in (*_IDLE_FIELDS, *_GUEST_FIELDS)
    ]
    me = psutil.Process()
    own = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # ended meanwhile; its parent has its time from now on
        own += times.user + times.system + times.children_user + times.children_system
    return time.monotonic(), sum(busy) / _TICKS, own


class Stopwatch:
    """Measures a block: `with Stopwatch() as timed: ...`.

    `seconds` is the wall time; `others` the share of all cores, 0 to 1, that processes outside the
    own tree used. Over less than a second `others` is coarse: the kernel counts in ticks of 10 ms.
    `stalled` is the sum of the seconds in which this process stood still.
    """

    def __init__(self, read: Callable[[], Reading] = read_machine) -> None:
        self._read = read
        self.seconds = 0.0
        self.others = 0.0
        self.stalled = 0.0
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._watcher = threading.Thread(target=self._watch_stalls, daemon=True)
        self._watcher.start()
        self._begin = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        begin, end = self._begin, self._read()
        self._ended.set()
        self._watcher.join()
        self.seconds = end[0] - begin[0]
        foreign = (end[1] - begin[1]) - (end[2] - begin[2])
        capacity = self.seconds * (os.cpu_count() or 1)
        self.others = max(0.0, foreign / capacity) if capacity else 0.0

    def _watch_stalls(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(TICK_SECONDS):
            now = time.monotonic()
            late = now - before - TICK_SECONDS
            if late >= MIN_STALL_SECONDS:
                self.stalled += late
            before = now

    @property
    def is_idle(self) -> bool:
        """Return whether the machine ran all the time, and for the own processes only."""
        return self.others <= IDLE_SHARE and not self.stalled

    def meets(self, name: str, at_most: float, seconds: float | None = None) -> bool:
        """Compares the time, or a part of it, with a bound in seconds.

        True within the bound. Beyond it AssertionError on an idle machine, and on any beyond SAFETY
        times the bound and the time of stalls; else False, which says that nothing was proved.
        """
        took = self.seconds if seconds is None else seconds
        if took <= at_most:
            return True
        text = f"{name}: {took:.1f} s, bound {at_most:g} s, others use {self.others:.0%}"
        text += f", stalled {self.stalled:.1f} s"
        assert not self.is_idle, text
        assert took - self.stalled <= at_most * SAFETY, text
        return False

    def check(self, name: str, at_most: float, seconds: float | None = None) -> None:
        """Compares the time with a bound as `meets` does; what is not judged is a warning."""
        if not self.meets(name, at_most, seconds):
            took = self.seconds if seconds is None else seconds
            text = f"not judged on a busy machine: {name}: {took:.1f} s, bound {at_most:g} s"
            warnings.warn(text, stacklevel=2)
