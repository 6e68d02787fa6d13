"""A batch for methods that have no faster way: one task for each target, so many at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isochrone.model import Target
    from isochrone.probing.prober import Prober, ProbeResult

CONCURRENCY = 256


async def side_by_side(
    prober: Prober,
    targets: Sequence[Target],
    *,
    source_address: str | None = None,
    timeout: float,
    rate: float | None = None,
    concurrency: int = CONCURRENCY,
) -> list[ProbeResult]:
    """Each target once, begun in order, at most `rate` a second and `concurrency` at once; results in the targets' order."""
    loop = asyncio.get_running_loop()
    slots = asyncio.Semaphore(concurrency)
    began = loop.time()

    async def one(target: Target) -> ProbeResult:
        try:
            return await prober.run_once(target, source_address=source_address, timeout=timeout)
        finally:
            slots.release()

    tasks = []
    async with asyncio.TaskGroup() as group:
        for number, target in enumerate(targets):
            if rate is not None:
                await asyncio.sleep(began + number / rate - loop.time())
            await slots.acquire()
            tasks.append(group.create_task(one(target)))
    return [task.result() for task in tasks]
