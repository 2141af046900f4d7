"""The parent process of several API workers. It starts and restarts them and answers probes.

It holds no state of the gateway and takes no connection of a client: each worker listens on the
port itself once it is ready.
"""

import asyncio
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial

import structlog
from prometheus_client import CollectorRegistry, generate_latest

from gateway_apiserver.settings import ApiSettings
from gateway_apiserver.workers.link import METRICS, READY, YES, WorkerLink
from gateway_apiserver.workers.listeners import reserve_port
from gateway_apiserver.workers.metrics import merge_expositions
from gateway_core.concurrency import Supervisor
from gateway_core.observability.logs import configure_logging
from gateway_core.observability.metrics import ProcessMetrics
from gateway_web.server import DRAIN_SECONDS, HealthApp, serve_health

UNUSABLE = 2
"""Exit status of a process whose settings, secrets or cluster cannot be used."""
FAILED = 1
HANG_SECONDS = 60.0
"""A worker that answers nothing for so long is killed, as the liveness probe does with one process.
"""
STARTING_SECONDS = 0.1
READY_SECONDS = 1.0
"""Between questions to a worker that is not ready, or is."""
SCRAPE_SECONDS = 5.0
"""How long a scrape waits for a worker; its metrics are missing from it then."""
CLOSE_SECONDS = 5.0
"""What a worker may take after its drain, to store charges."""

_log = structlog.get_logger(__name__)


class WorkerEnded(Exception):
    """A worker has ended and nothing had asked it to."""


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    link: WorkerLink
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    answers: bool = False
    """Whether it has ever answered; before, it is starting and a scrape would only wait."""
    ready: bool = False


class Parent:
    """Workers, numbered from 0. `command` starts one; the option `--link FD` is added to it.

    `leave_seconds` is how long workers have to end after the first signal.
    """

    def __init__(self, command: Sequence[str], count: int, leave_seconds: float) -> None:
        self._command = tuple(command)
        self._count = count
        self._leave_seconds = leave_seconds
        self._registry = CollectorRegistry()
        self._supervisor = Supervisor(ProcessMetrics(self._registry, "api").count_failure)
        self._workers: dict[int, _Worker] = {}
        self._runs: dict[int, asyncio.Task[None]] = {}
        self._complete = False
        self._leaving = False
        self._status = 0

    def is_ready(self) -> bool:
        """Whether clients are served: first by all workers, and from then on by one at least."""
        serving = any(worker.ready for worker in self._workers.values())
        return self._complete and serving and not self._leaving

    async def read_metrics(self) -> bytes:
        """The metrics of this process and, with the label `worker`, of all that answer in time."""
        asked = {number: worker for number, worker in self._workers.items() if worker.answers}
        answers = await asyncio.gather(*map(_scrape, asked.values()))
        found = {number: text for number, text in zip(asked, answers, strict=True) if text}
        return merge_expositions(generate_latest(self._registry), found)

    async def run(self) -> int:
        """Run the workers until all have ended after a signal; the exit status.

        Status 2 of a worker ends the others. 1 if one had to be killed.
        """
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self.leave, each)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in range(self._count):
            run = self._supervisor.keep(
                f"worker_{number}", partial(self._run, number), may_end=True
            )
            self._runs[number] = asyncio.create_task(run)
        await asyncio.gather(*self._runs.values(), return_exceptions=True)
        loop.remove_signal_handler(signal.SIGCHLD)
        return self._status

    def leave(self, number: signal.Signals) -> None:
        """Pass a signal on to the workers, and start none any more."""
        for worker in self._workers.values():
            _send(worker, number)
        if self._leaving:
            return
        self._leaving = True
        for index, run in self._runs.items():
            if index not in self._workers:
                # it waits for its restart
                run.cancel()
        asyncio.get_running_loop().call_later(self._leave_seconds, self._kill)

    def _reap(self) -> None:
        for worker in self._workers.values():
            if worker.process.poll() is not None:
                worker.ended.set()

    def _kill(self) -> None:
        for number, worker in self._workers.items():
            _log.error("worker does not end; killing it", worker=number)
            _send(worker, signal.SIGKILL)

    async def _run(self, number: int) -> None:
        """Run one worker to its end. WorkerEnded if it is to be restarted."""
        ours, theirs = socket.socketpair()
        with closing(await WorkerLink.open(ours)) as link:
            with theirs:
                # asyncio's own may wait forever where it is cancelled, and the start is short
                process = subprocess.Popen(  # noqa: ASYNC220, S603 - this module again
                    (*self._command, "--link", str(theirs.fileno())),
                    pass_fds=(theirs.fileno(),),
                    # Ctrl-C reaches this process alone, which passes it on
                    process_group=0,
                )
            self._workers[number] = worker = _Worker(process, link)
            watching = asyncio.create_task(self._watch(number, worker))
            try:
                await worker.ended.wait()
            finally:
                del self._workers[number]
                watching.cancel()
        status = process.wait()
        if status == UNUSABLE:
            self._status = UNUSABLE
            self.leave(signal.SIGINT)
        elif not self._leaving:
            raise WorkerEnded(f"worker {number} ended with {_describe(status)}")
        elif status not in (0, -signal.SIGTERM, -signal.SIGINT):
            self._status = self._status or FAILED

    async def _watch(self, number: int, worker: _Worker) -> None:
        """Follow whether the worker is ready; kill it if it hangs."""
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(HANG_SECONDS):
                    answer = await worker.link.ask(READY)
                worker.answers, worker.ready = True, answer == YES
                ready = [each.ready for each in self._workers.values()]
                self._complete |= len(ready) == self._count and all(ready)
                if answer is None:
                    # it has ended, or is about to
                    await asyncio.sleep(HANG_SECONDS)
                    break
                await asyncio.sleep(READY_SECONDS if worker.ready else STARTING_SECONDS)
        _log.error("worker hangs; killing it", worker=number)
        _send(worker, signal.SIGKILL)


async def _scrape(worker: _Worker) -> bytes | None:
    try:
        async with asyncio.timeout(SCRAPE_SECONDS):
            return await worker.link.ask(METRICS)
    except TimeoutError:
        return None


def _send(worker: _Worker, number: signal.Signals) -> None:
    # does nothing where the process has ended
    worker.process.send_signal(number)


def _describe(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


async def run_parent(settings: ApiSettings, command: Sequence[str]) -> int:
    """Run `settings.workers` workers and their health port until a signal; the exit status.

    SystemExit if the health port cannot be listened on.
    """
    configure_logging(settings.log_level, settings.log_format)
    try:
        reserved = reserve_port(settings.api_host, settings.api_port)
    except OSError as error:
        address = f"{settings.api_host}:{settings.api_port}"
        _log.error("cannot listen", address=address, error=str(error))
        return FAILED
    leave_seconds = settings.linger_seconds + DRAIN_SECONDS + CLOSE_SECONDS
    parent = Parent(command, settings.workers, leave_seconds)
    health = HealthApp(parent.is_ready, parent.read_metrics if settings.metrics_enabled else None)
    try:
        async with serve_health(health, settings.health_host, settings.health_port):
            return await parent.run()
    finally:
        for each in reserved:
            each.close()
