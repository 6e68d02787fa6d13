"""What `bench/edge.py` compares with: a Python Worker that forwards everything to one fixed origin, and does nothing else."""

import js

from workers import Response, WorkerEntrypoint


class Default(WorkerEntrypoint):
    async def fetch(self, request):
        js_request = request.js_object
        url = js_request.url
        return Response(
            await js.fetch(js.Request.new("https://one.origins.test" + url[url.find("/", 8) :], js_request))
        )
