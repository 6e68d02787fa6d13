"""A Python Worker that does nothing: what a cold start costs at least."""

from workers import Response, WorkerEntrypoint


class Default(WorkerEntrypoint):
    async def fetch(self, request):
        return Response("")
