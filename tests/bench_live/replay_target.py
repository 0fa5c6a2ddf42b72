"""A small OpenAI-compatible server whose answers a test scripts, served on a free port."""

import asyncio
import contextlib
import json

from aiohttp import web


def sse(payload):
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return f"data: {text}\n\n".encode()


def content(text):
    return sse({"choices": [{"index": 0, "text": text}]})


def usage(prompt, cached, output):
    details = {"cached_tokens": cached}
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": details,
    }
    return sse({"choices": [], "usage": counts})


class ScriptedServer:
    """`answer(server, request_body, response)` writes the stream; defaults to a short good one."""

    def __init__(self, answer=None):
        self.answer = answer or ScriptedServer.good
        self.bodies = []
        self.headers = []
        self.url = ""

    async def good(self, body, write):
        await asyncio.sleep(0.02)
        for _ in range(body["max_tokens"]):
            await write(content(" x"))
        await write(usage(len(body["prompt"]), 16, body["max_tokens"]) + sse("[DONE]"))

    async def _completions(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers)
        headers = {"Content-Type": "text/event-stream", "x-warmroute-instance": "e0"}
        response = web.StreamResponse(headers=headers)
        if body["model"] == "refused":
            return web.json_response({"error": "no such model"}, status=404)
        await response.prepare(request)
        await self.answer(self, body, response.write)
        return response

    @contextlib.asynccontextmanager
    async def serving(self):
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/completions", self._completions)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()
