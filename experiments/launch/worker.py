"""A process that carries out one run: it reads a pickled `Job` from its parent, and ends when its parent does."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading


def main() -> int:
    """0 when the run is done, 1 when it failed; its folder says why."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent as well, which ends this process
    sent = sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from experiments.launch.job import attempt  # takes seconds, in which the parent may end or Ctrl-C come

    logging.getLogger("algos").setLevel(logging.INFO)
    return 1 if attempt(pickle.loads(sent)) else 0


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # returns when the parent ends, however that does
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
