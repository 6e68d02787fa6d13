"""Between workerd's events and the Worker's Python class: one call in and one call out per event."""

import asyncio
import importlib
import inspect
import random
import traceback

import workers


class Handlers:
    """One method per kind of event; each ends by calling `done(failure, result)` once."""

    def __init__(self, entrypoint):
        self._entrypoint = entrypoint
        self._loop = asyncio.get_event_loop()

    def reseed(self):
        """The generator was seeded while there was no entropy."""
        random.seed()

    def fetch(self, request, env, ctx, done):
        self._start(self._fetch(request, env, ctx, done))

    def scheduled(self, controller, env, ctx, done):
        self._start(self._scheduled(controller, env, ctx, done))

    def _start(self, coroutine):
        # Started eagerly: a handler that awaits nothing costs no turn of the event loop.
        asyncio._set_running_loop(self._loop)
        asyncio.Task(coroutine, loop=self._loop, eager_start=True)

    async def _fetch(self, request, env, ctx, done):
        try:
            response = self._entrypoint(ctx, env).fetch(workers.Request(request))
            if inspect.isawaitable(response):
                response = await response
            if isinstance(response, workers.FetchResponse):
                response = response.js_object
            elif response is None:
                raise TypeError("fetch returned None, not a Response")
        except BaseException:
            self._fail(done)
        else:
            done(None, response)

    async def _scheduled(self, controller, env, ctx, done):
        try:
            result = self._entrypoint(ctx, env).scheduled(controller)
            if inspect.isawaitable(result):
                await result
        except BaseException:
            self._fail(done)
        else:
            done(None, None)

    def _fail(self, done):
        # workerd answers 500 and logs what it is given.
        done(traceback.format_exc(), None)


def load(entry):
    importlib.invalidate_caches()
    module = importlib.import_module(entry)
    return Handlers(module.Default)
