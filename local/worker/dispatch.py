# ruff: noqa: INP001 - mounted on its own inside the isolate
"""Between workerd's events and the Worker's Python class: one call in and one call out per event."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import random
import sys
import traceback
from typing import TYPE_CHECKING

from pyodide.code import relaxed_call

import workers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pyodide.ffi import JsProxy

    Done = Callable[[str | None, object], None]

# Held by the memory image, so that a Worker that imports them need not read them from the zip when it starts.
PRELOADED = """
    base64 bisect collections contextlib dataclasses datetime decimal email.utils enum functools hashlib hmac
    http.cookies itertools json logging math operator re secrets statistics string struct time typing urllib.parse
    uuid zlib
"""
for name in PRELOADED.split():
    importlib.import_module(name)


class Handlers:
    """One method per kind of event; each ends by calling `done(failure, result)` once."""

    def __init__(self, entrypoint: type[workers.WorkerEntrypoint]) -> None:
        self._entrypoint = entrypoint
        self._loop = asyncio.get_event_loop()

    def reseed(self) -> None:
        """The generator was seeded while there was no entropy."""
        random.seed()

    def fetch(self, request: JsProxy, env: JsProxy, ctx: JsProxy, done: Done) -> None:
        """A request: `done` gets a JavaScript Response."""
        self._start(self._fetch(request, env, ctx, done))

    def scheduled(self, controller: JsProxy, env: JsProxy, ctx: JsProxy, done: Done) -> None:
        """A cron trigger: `done` gets nothing."""
        self._start(self._scheduled(controller, env, ctx, done))

    def _start(self, coroutine: Coroutine[object, object, None]) -> None:
        # Started eagerly: a handler that awaits nothing costs no turn of the event loop.
        asyncio._set_running_loop(self._loop)  # noqa: SLF001 - documented for those who run loops
        asyncio.Task(coroutine, loop=self._loop, eager_start=True)

    async def _fetch(self, request: JsProxy, env: JsProxy, ctx: JsProxy, done: Done) -> None:
        try:
            response = self._entrypoint(ctx, env).fetch(workers.Request(request))
            if inspect.isawaitable(response):
                response = await response
            if isinstance(response, workers.FetchResponse):
                response = response.js_object
            elif response is None:
                raise TypeError("fetch returned None, not a Response")
        except BaseException:  # noqa: BLE001 - whatever it is, the client must get an answer
            done(traceback.format_exc(), None)  # workerd answers 500 and logs what it is given
        else:
            done(None, response)

    async def _scheduled(self, controller: JsProxy, env: JsProxy, ctx: JsProxy, done: Done) -> None:
        try:
            # Workers may write scheduled(controller) or scheduled(controller, env, ctx).
            result = relaxed_call(self._entrypoint(ctx, env).scheduled, controller, env, ctx)
            if inspect.isawaitable(result):
                await result
        except BaseException:  # noqa: BLE001 - as above
            done(traceback.format_exc(), None)
        else:
            done(None, None)


def load(entry: str) -> Handlers:
    """Import the Worker's main module.

    Raises:
        ImportError: it has no class `Default`.
    """
    # The Worker's files came after the memory image was taken: forget what was seen where they are now. Not
    # `invalidate_caches()`: that reads the directory of the whole standard library's zip again, 0.1 s.
    for folder in [path for path in sys.path_importer_cache if path.startswith("/session")]:
        del sys.path_importer_cache[folder]
    module = importlib.import_module(entry)
    try:
        return Handlers(module.Default)
    except AttributeError:
        raise ImportError(f"{entry}.py has no class Default(WorkerEntrypoint)") from None
