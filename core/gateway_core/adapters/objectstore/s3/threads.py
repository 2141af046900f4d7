"""Threads for calls that block; used by `store`."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class Threads:
    """So many threads. A call that finds none free waits on this side of them.

    So it is given up with whoever wanted it, and nothing gathers behind calls that hang.
    """

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._free = asyncio.Semaphore(count)

    def close(self) -> None:
        """Ends them once their work is done."""
        self._pool.shutdown()

    async def run(
        self,
        work: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """What `work` returns or raises. Who is cancelled leaves its thread at work."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()

        def end(_: "Future[Any]") -> None:
            self._free.release()
            if not waiting.done():
                waiting.set_result(None)

        def tell(job: "Future[Any]") -> None:
            with suppress(RuntimeError):  # a loop that has ended has nobody waiting
                # one waking for both, where `wrap_future` beside the release takes three turns
                loop.call_soon_threadsafe(end, job)

        try:
            job = self._pool.submit(work, *arguments, **options)
        except BaseException:
            self._free.release()
            raise
        job.add_done_callback(tell)
        await waiting
        try:
            return job.result()
        finally:
            # an error's traceback would hold the job, which holds the error and all arguments
            del job
