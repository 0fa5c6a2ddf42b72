"""vLLM's HTTP surface over an engine loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web

from bench.mock_engine.answers import (
    DONE,
    AnswerHead,
    TokenStream,
    usage_event,
    whole_answer,
)
from bench.mock_engine.clock import wall_clock_s
from bench.mock_engine.config import MockEngineConfig
from bench.mock_engine.engine_loop import EngineLoop, Generation
from bench.mock_engine.faults import Faults
from bench.mock_engine.kv_publisher import KvPublisher
from bench.mock_engine.metrics import render_metrics
from bench.mock_engine.prompts import PreparedPrompt, PromptBuilder
from bench.mock_engine.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    RequestError,
    TokenizeBody,
    decode,
    plain_messages,
)
from bench.mock_engine.tokenizer import TemplateError, Tokenizer

VERSION: Final = "0.33.0+mock"
_BODY_LIMIT_BYTES: Final = 64 << 20
_LONG_TEXT_CHARS: Final = 16_384  # beyond this, encoding would hold up the steps of other requests
_REQUEST_ID: Final = "x-request-id"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class MockServer:
    """The handlers of one engine.

    Args:
        config: served model, limits.
        tokenizer: text to ids and back.
        builder: ids to prepared prompts.
        loop: the engine.
        publisher: where KV events are.
        faults: what is broken; tests set it through `/mock/fault`.
    """

    def __init__(
        self,
        config: MockEngineConfig,
        tokenizer: Tokenizer,
        builder: PromptBuilder,
        loop: EngineLoop,
        publisher: KvPublisher,
        faults: Faults,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._builder = builder
        self._loop = loop
        self._publisher = publisher
        self._faults = faults
        self._started_s = wall_clock_s()
        self._requests = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_BODY_LIMIT_BYTES, middlewares=[answer_errors])
        app.on_response_prepare.append(_echo_request_id)
        app.add_routes(
            [
                web.post("/v1/completions", self.completions),
                web.post("/v1/chat/completions", self.chat_completions),
                web.get("/v1/models", self.models),
                web.post("/tokenize", self.tokenize),
                web.post("/detokenize", self.detokenize),
                web.get("/health", self.health),
                web.get("/metrics", self.metrics),
                web.get("/version", self.version),
                web.get("/kv_event_sources", self.kv_event_sources),
                web.post("/reset_prefix_cache", self.reset_prefix_cache),
                web.get("/mock/held", self.held),
                web.post("/mock/fault", self.fault),
            ]
        )
        return app

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = decode(await request.read(), CompletionBody)
        self._admit(body)
        prompts = [
            self._prepare(await self._ids(prompt), body.output_tokens, body.cache_salt)
            for prompt in body.prompts()
        ]
        return await self._answer(request, body, prompts, self._head(request, chat=False))

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        body = decode(await request.read(), ChatBody)
        self._admit(body)
        prompt = self._prepare(await self._chat_ids(body), body.output_tokens, body.cache_salt)
        return await self._answer(request, body, [prompt], self._head(request, chat=True))

    async def models(self, _: web.Request) -> web.Response:
        card = {
            "id": self._config.model,
            "object": "model",
            "created": int(self._started_s),
            "owned_by": "vllm",
            "root": self._config.model,
            "parent": None,
            "max_model_len": self._config.context_tokens,
            "permission": [],
        }
        return _json({"object": "list", "data": [card]})

    async def tokenize(self, request: web.Request) -> web.Response:
        raw = await request.read()
        fields = decode(raw, dict[str, Any])
        if "messages" in fields:
            chat = decode(raw, ChatBody)
            self._check_model(chat.model)
            ids = await self._chat_ids(chat)
        else:
            plain = decode(raw, TokenizeBody)
            self._check_model(plain.model)
            ids = await self._encode(plain.prompt, plain.add_special_tokens)
        length = {"count": len(ids), "max_model_len": self._config.context_tokens}
        return _json({**length, "tokens": ids, "token_strs": None})

    async def detokenize(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), DetokenizeBody)
        self._check_model(body.model)
        self._check_ids(body.tokens)
        return _json({"prompt": self._tokenizer.decode(body.tokens)})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self._loop.alive else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        text = render_metrics(self._config, self._loop.model.stats(), self._started_s)
        return web.Response(body=text.encode(), headers={"Content-Type": _METRICS_TYPE})

    async def version(self, _: web.Request) -> web.Response:
        return _json({"version": VERSION})

    async def kv_event_sources(self, _: web.Request) -> web.Response:
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self._publisher.live_endpoint,
            "replay_endpoint": self._publisher.replay_endpoint,
            "buffer_steps": self._config.buffer_steps,
            "hwm": self._config.hwm,
            "max_queue_size": self._config.hwm,
            "topic": self._config.topic,
        }
        return _json({"0": source})

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        return _json({"success": self._loop.model.reset_prefix_cache()})

    async def held(self, _: web.Request) -> web.Response:
        """Every block in the cache, and whether the events up to `next_sequence` tell the same."""
        blocks = [
            {"engine_hash": engine_hash, "own_hash": own_hash}
            for engine_hash, own_hash in self._loop.held().items()
        ]
        state = {
            "block_tokens": self._config.block_tokens,
            "next_sequence": self._publisher.next_sequence,
            "announced": self._loop.announced,
        }
        return _json({**state, "blocks": blocks})

    async def fault(self, request: web.Request) -> web.Response:
        """Replaces all faults by those in the body; fields left out are switched off."""
        self._faults.replace_by(decode(await request.read(), Faults))
        self._loop.wake()
        return _json(self._faults)

    def _admit(self, body: GenerationBody) -> None:
        if self._faults.refuse:
            raise RequestError(503, "the engine refuses requests")
        self._check_model(body.model)
        body.check()

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self._config.model:
            raise RequestError(404, f"The model `{model}` does not exist.", "model")

    def _check_ids(self, ids: list[int]) -> None:
        limit = self._tokenizer.id_limit
        if limit is not None and ids and max(ids) >= limit:
            raise RequestError(400, f"Token id {max(ids)} is out of vocabulary", "prompt")

    def _head(self, request: web.Request, chat: bool) -> AnswerHead:
        prefix = "chatcmpl" if chat else "cmpl"
        self._requests += 1
        name = request.headers.get(_REQUEST_ID) or f"mock{self._requests}"
        return AnswerHead(f"{prefix}-{name}", int(wall_clock_s()), self._config.model, chat)

    async def _ids(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            return await self._encode(prompt, add_special_tokens=True)
        self._check_ids(prompt)
        return prompt

    async def _chat_ids(self, chat: ChatBody) -> list[int]:
        messages = plain_messages(chat.messages)
        extra = chat.chat_template_kwargs or {}
        try:
            text = self._tokenizer.template.render(
                messages, chat.tools, chat.add_generation_prompt, extra
            )
        except TemplateError as error:
            raise RequestError(400, str(error), "messages") from error
        return await self._encode(text, chat.add_special_tokens)

    async def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) > _LONG_TEXT_CHARS:
            return await asyncio.to_thread(self._tokenizer.encode, text, add_special_tokens)
        return self._tokenizer.encode(text, add_special_tokens)

    def _prepare(self, ids: list[int], output_tokens: int, salt: str | None) -> PreparedPrompt:
        limit = self._config.context_tokens
        if not ids:
            raise RequestError(400, "The decoder prompt cannot be empty", "prompt")
        if len(ids) + output_tokens > limit:
            raise RequestError(
                400,
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{output_tokens} output tokens and your prompt contains {len(ids)} input tokens.",
                "max_tokens",
            )
        try:
            return self._builder.prepare(ids, output_tokens, salt or "")
        except OverflowError as error:
            raise RequestError(400, "token ids must be from 0 to 2**32 - 1", "prompt") from error

    async def _answer(
        self,
        request: web.Request,
        body: GenerationBody,
        prompts: list[PreparedPrompt],
        head: AnswerHead,
    ) -> web.StreamResponse:
        generations: list[Generation] = []
        try:
            if body.stream:
                return await self._stream(request, body, prompts, head, generations)
            generations += [self._loop.submit(head.response_id, prompt) for prompt in prompts]
            await _all_done(generations)
            return _json_bytes(whole_answer(head, generations))
        finally:
            # Reached early when the client goes away: the engine must not work for nobody.
            for generation in generations:
                self._loop.abort(generation)

    async def _stream(
        self,
        request: web.Request,
        body: GenerationBody,
        prompts: list[PreparedPrompt],
        head: AnswerHead,
        generations: list[Generation],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        response.enable_chunked_encoding()
        await response.prepare(request)
        transport = request.transport
        if transport is None:  # the client has gone
            return response
        for index, prompt in enumerate(prompts):
            stream = TokenStream(transport, head, index, prompt.output, self._faults)
            generations.append(self._loop.submit(head.response_id, prompt, stream.emit))
        await _all_done(generations)
        last = usage_event(head, generations) if body.include_usage else b""
        await response.write(last + DONE)
        await response.write_eof()
        return response


_CLIENT_GONE: Final = 499
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_STREAM_HEADERS: Final = {"Content-Type": "text/event-stream; charset=utf-8"}


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns a `RequestError` into vLLM's error body."""
    try:
        return await handler(request)
    except RequestError as error:
        return _json_bytes(error.body(), error.status)
    except ConnectionResetError:
        # The client left just before something was written: no defect, and nobody reads this.
        return web.Response(status=_CLIENT_GONE)


async def _echo_request_id(request: web.Request, response: web.StreamResponse) -> None:
    if _REQUEST_ID in request.headers:
        response.headers[_REQUEST_ID] = request.headers[_REQUEST_ID]


async def _all_done(generations: list[Generation]) -> None:
    # `wait` leaves the futures alone when this handler is cancelled; the engine still sets them.
    await asyncio.wait([generation.done for generation in generations])


def _json(value: Any) -> web.Response:
    return _json_bytes(msgspec.json.encode(value))


def _json_bytes(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
