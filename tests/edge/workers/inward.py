"""What a request brings, what KV holds, what is logged, and how failures look; one path each."""

import asyncio
import json
import secrets

import js
from pyodide.ffi import run_sync

from workers import Response, WorkerEntrypoint

CF_FIELDS = ("asn", "country", "colo", "continent", "latitude", "httpProtocol")


def depth(number):
    if number == 0:
        raise ValueError("the well is dry")
    depth(number - 1)


class Default(WorkerEntrypoint):
    async def fetch(self, request):
        path = js.URL.new(request.url).pathname
        handler = getattr(self, path.strip("/"), None)
        return Response("not found", status=404) if handler is None else await handler(request)

    async def scheduled(self, controller):
        print(f"cron {controller.cron}")
        await self.env.STORE.put("from-cron", controller.cron)

    async def facts(self, request):
        cf = request.cf
        facts = None if cf is None else {name: getattr(cf, name, None) for name in CF_FIELDS}
        return Response(
            json.dumps(
                {
                    "url": request.url,
                    "method": request.method,
                    "cf": facts,
                    "host": request.headers["host"],
                    "vars": [self.env.PLAIN, self.env.JSON.depth, self.env.SECRET],
                }
            ),
            headers={"content-type": "application/json", "x-made-by": "python"},
        )

    async def kv(self, request):
        if request.method == "PUT":
            await self.env.STORE.put("from-worker", await request.text())
            return Response(None, status=204)
        value = await self.env.STORE.get("from-api")
        return Response("(absent)" if value is None else value)

    async def raises(self, request):
        depth(2)

    async def none(self, request):
        return None

    async def background(self, request):
        async def later():
            await asyncio.sleep(0.2)
            await self.env.STORE.put("from-background", "done")
            print("background work is done")

        self.ctx.waitUntil(later())
        return Response("answered")

    async def background_fails(self, request):
        async def later():
            await asyncio.sleep(0)
            raise RuntimeError("background work broke")

        self.ctx.waitUntil(later())
        return Response("answered")

    async def streams(self, request):
        pipe = js.TransformStream.new()
        writer = pipe.writable.getWriter()

        async def write():
            for number in range(3):
                await writer.write(js.TextEncoder.new().encode(f"part {number};"))
                await asyncio.sleep(0.1)
            await writer.close()

        self.ctx.waitUntil(write())
        return js.Response.new(pipe.readable)

    async def echo(self, request):
        return js.Response.new(request.js_object.body)

    async def logs(self, request):
        print("printed by Python")
        js.console.log("logged through JavaScript")
        return Response("ok")

    async def chance(self, request):
        import random

        return Response(f"{secrets.token_hex(8)} {random.random()}")

    async def gathers(self, request):
        async def one(number):
            await asyncio.sleep(0.01 * number)
            return number

        async with asyncio.timeout(5):
            return Response(json.dumps(await asyncio.gather(*(one(n) for n in range(5)))))

    async def slow_echo(self, request):
        text = await request.text()
        await asyncio.sleep(0.05)
        return Response(text)

    async def never(self, request):
        await asyncio.sleep(3600)

    async def waits(self, request):
        return Response(run_sync(js.Promise.resolve("waited")))
