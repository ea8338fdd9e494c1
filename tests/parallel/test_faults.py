"""A process that dies takes the run with it: the others end within the timeout, and say why."""

import subprocess
import sys
import time

from tests.parallel.pool import free_port


def test_when_a_process_is_killed_the_others_end_in_words() -> None:
    port, size = str(free_port()), 3
    commands = [[sys.executable, "-m", "tests.parallel.faulty", str(rank), str(size), port] for rank in range(size)]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        started[1].communicate(timeout=120)
        killed = time.monotonic()
        for rank in (0, 2):
            error = started[rank].communicate(timeout=60)[1]
            assert started[rank].returncode not in (0, None)
            assert "the processes that hold this sequence could not exchange what they have" in error
        assert time.monotonic() - killed < 30  # the group's timeout is 10 seconds
    finally:
        for process in started:
            process.kill()
            process.communicate()
