"""HTTP face of an indexer: who holds how much of a prompt, which instances are known."""

from collections.abc import Callable
from typing import Annotated

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from indexer.config import IndexerConfig
from indexer.core.blocks import block_hashes, namespace_hash
from indexer.core.tiers import WIRE_NAMES
from indexer.feed import IndexFeed

BlockHash = Annotated[int, msgspec.Meta(gt=0)]  # below 2**64, which the index checks


class MatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A prompt, by its token ids or by its block hashes."""

    model: str = ""
    token_ids: list[int] | None = None
    hashes: list[BlockHash] | None = None
    cache_salt: str = ""
    lora: str = ""


class MatchEntry(msgspec.Struct, frozen=True):
    """One instance's share of the prompt."""

    instance: str
    rank: int
    depth_tokens: dict[str, int]  # per tier, cumulative from the fastest
    confidence: float
    staleness_s: float


class MatchReply(msgspec.Struct, frozen=True):
    block_tokens: int
    prompt_blocks: int
    matches: list[MatchEntry]


class IndexerService:
    """Request handlers over one index feed."""

    def __init__(
        self,
        config: IndexerConfig,
        secret: str,
        feed: IndexFeed,
        registry: CollectorRegistry,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._secret = secret
        self._feed = feed
        self._registry = registry
        self._clock = clock
        self._decoder = msgspec.json.Decoder(MatchRequest)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/match", self._match)
        app.router.add_get("/v1/instances", self._instances)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        return app

    def match(self, request: MatchRequest) -> MatchReply:
        """Depths of every live stream, deepest first.

        Raises:
            ValueError: neither or both of token_ids and hashes, or the prompt is too long.
        """
        hashes = self._hashes(request)
        if len(hashes) > self._config.max_match_blocks:
            raise ValueError(f"prompt has more than {self._config.max_match_blocks} blocks")
        size = self._config.block_tokens
        found = self._feed.ingest.match(hashes, size, self._clock())
        entries = [
            MatchEntry(
                m.instance,
                m.rank,
                {name: d * size for name, d in zip(WIRE_NAMES, m.depth_blocks, strict=True)},
                m.confidence,
                m.staleness_s,
            )
            for m in found
        ]
        entries.sort(key=lambda e: (-e.depth_tokens["gpu"], e.instance, e.rank))
        return MatchReply(size, len(hashes), entries)

    def _hashes(self, request: MatchRequest) -> list[int]:
        if (request.token_ids is None) == (request.hashes is None):
            raise ValueError("give either token_ids or hashes")
        if request.hashes is not None:
            return request.hashes
        seed = namespace_hash(
            request.model, lora=request.lora, cache_salt=request.cache_salt, secret=self._secret
        )
        try:
            return block_hashes(request.token_ids or [], self._config.block_tokens, seed)
        except OverflowError as error:
            raise ValueError(f"token_ids: {error}") from error

    async def _match(self, request: web.Request) -> web.Response:
        try:
            reply = self.match(self._decoder.decode(await request.read()))
        except (msgspec.DecodeError, ValueError, OverflowError) as error:
            return _json({"error": {"message": str(error), "type": "invalid_request"}}, 400)
        return _json(reply)

    async def _instances(self, _: web.Request) -> web.Response:
        now_s = self._clock()
        ingest = self._feed.ingest
        return _json(
            [
                {
                    "instance": stream.key[0],
                    "rank": stream.key[1],
                    "epoch": stream.cursor.epoch,
                    "seq": stream.cursor.seq,
                    "synced": stream.synced,
                    "retired": ingest.is_retired(stream, now_s),
                    "confidence": stream.confidence(ingest.config, now_s),
                    "blocks": ingest.index.count(stream.source),
                    "url": hb.url if (hb := ingest.heartbeats.get(stream.key[0])) else None,
                }
                for stream in ingest.streams.values()
            ]
        )

    async def _health(self, _: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _ready(self, _: web.Request) -> web.Response:
        """Ready once NATS is connected and no stream has a hole: an indexer knows nothing else."""
        complete = all(stream.synced for stream in self._feed.ingest.streams.values())
        ready = self._feed.connected and complete
        return _json({"ready": ready}, 200 if ready else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )
