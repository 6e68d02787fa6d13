"""Sends each request on to the URL in the header `X-Target`, changing nothing else."""

import js
from pyodide.ffi import JsException

from workers import Response, WorkerEntrypoint


class Default(WorkerEntrypoint):
    async def fetch(self, request):
        incoming = request.js_object
        target = incoming.headers.get("x-target")
        try:
            return await js.fetch(js.Request.new(target, incoming), redirect="manual")
        except JsException as error:
            return Response(f"{error.name}: {error.message}", status=502)
