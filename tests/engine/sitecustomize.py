"""Imported by every process of an engine under test, since this folder is on its path; by nothing else.

An engine's ranks wait for one another by giving the core away in a loop (`os.sched_yield`). Where there are hardly more
cores than ranks, Linux 6.18 was seen to run nothing but these loops for up to a minute: sleepers of other processes woke 5
to 100 s late, the threads of tiers and the server that they talked to among them. A short sleep in its place, and all of
that was gone. Engines on real machines have cores to spare; a test machine may have two.
"""

import os
import time

_FEW_CORES = 4
_PAUSE_S = 50e-6

if len(os.sched_getaffinity(0)) <= _FEW_CORES:
    os.sched_yield = lambda: time.sleep(_PAUSE_S)
