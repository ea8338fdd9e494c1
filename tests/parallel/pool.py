"""Processes that stay, four of them, joined by gloo, and do what a test asks of the first P of them.

A job is a function of `tests.parallel.jobs`: (group, payload) -> result. Starting processes takes seconds, a job milliseconds.
"""

import datetime
import importlib
import io
import multiprocessing
import os
import socket
import traceback
from typing import Any

import torch
import torch.distributed as dist

MOST = 4
TIMEOUT = 60  # seconds that a process waits for the others


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def serve(rank: int, most: int, port: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    if os.environ.get("TRITON_INTERPRET") == "1":
        from tests.gpu.interpreter import quicken

        quicken()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(most))
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT))
    groups = {size: dist.new_group(list(range(size))) for size in range(1, most + 1)}
    while (asked := pipe.recv_bytes()) != b"end":
        job, size, payload = torch.load(io.BytesIO(asked), weights_only=False)
        module, name = job.rsplit(".", 1)
        try:
            answer = ("fine", getattr(importlib.import_module(module), name)(groups[size], payload))
        except Exception as error:
            answer = ("raised", (type(error).__name__, str(error), traceback.format_exc()))
        pipe.send_bytes(_packed(answer))
    dist.destroy_process_group()


class Raised(Exception):
    """What the processes raised: a list of (type's name, message, traceback), None for those that did not."""

    def __init__(self, errors: list[tuple[str, str, str] | None]) -> None:
        super().__init__("\n".join(e[2] for e in errors if e is not None))
        self.errors = errors


class Pool:
    def __init__(self, most: int = MOST) -> None:
        context, port = multiprocessing.get_context("spawn"), free_port()
        self._pipes, self._processes = [], []
        for rank in range(most):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(rank, most, port, there), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, job: str, payloads: list[Any]) -> list[Any]:
        """One payload for each process; their results, in order."""
        for pipe, payload in zip(self._pipes, payloads, strict=False):
            pipe.send_bytes(_packed((f"tests.parallel.jobs.{job}", len(payloads), payload)))
        answers = [
            torch.load(io.BytesIO(self._pipes[r].recv_bytes()), weights_only=False) for r in range(len(payloads))
        ]
        if any(kind == "raised" for kind, _ in answers):
            raise Raised([value if kind == "raised" else None for kind, value in answers])
        return [value for _, value in answers]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send_bytes(b"end")
        for process in self._processes:
            process.join(timeout=30)
            if process.is_alive():
                process.kill()


def _packed(x: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(x, buffer)
    return buffer.getvalue()
