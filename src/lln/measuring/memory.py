"""Peak memory of a call: the growth of the process's resident set, as the kernel counts it.

This includes memory that a C++ library allocates itself. The call runs in a process of its own, which returns
freed memory to the system at once (glibc's mmap threshold is lowered), so that nothing left over hides the peak. Linux only.
"""

import ctypes
import gc
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_M_MMAP_THRESHOLD = -3  # glibc's number for it


def peak_extra_bytes(prepare: Callable[..., Callable[[], Any]], *arguments: Any) -> int:
    """Peak memory of `prepare(*arguments)()` beyond what is there before the call, in bytes.

    `prepare` is a function at the top level of a module; it makes the inputs and returns the call to be measured, which
    runs twice: once to warm up, once to be measured.
    """
    if not sys.platform.startswith("linux"):
        raise RuntimeError(f"peak memory is read from /proc, which {sys.platform} does not have")
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, prepare, arguments))
    process.start()
    sender.close()
    try:
        return int(receiver.recv())
    except EOFError:
        raise MemoryError(f"the measured process ended with exit code {process.exitcode}") from None
    finally:
        process.join()


def _measure(sender: Any, prepare: Callable[..., Callable[[], Any]], arguments: tuple[Any, ...]) -> None:
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 1 << 16)
    call = prepare(*arguments)
    call()
    gc.collect()
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # start counting the peak anew
    before = _status("VmRSS")
    call()
    sender.send(_status("VmHWM") - before)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024
