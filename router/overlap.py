"""Overlap sources: the router's own replica of the index, and none."""

from collections.abc import Mapping

from indexer.core.ingest import Ingest
from router.core.prompt import PromptKey
from router.core.views import InstanceKey, PrefixMatch


class IndexOverlap:
    """Asks the index replica in this process. Only token keys can be in it."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest

    def match(self, key: PromptKey, now_s: float) -> Mapping[InstanceKey, PrefixMatch]:
        if key.kind != "tokens":
            return {}
        return {
            (found.instance, found.rank): PrefixMatch(
                min(found.depth_blocks[0] * key.block_tokens, key.tokens),
                found.confidence,
                found.staleness_s,
            )
            for found in self._ingest.match(key.hashes, key.block_tokens, now_s)
        }


class NoOverlap:
    """There is no index: nothing is known of anybody."""

    def match(self, key: PromptKey, now_s: float) -> Mapping[InstanceKey, PrefixMatch]:  # noqa: ARG002
        return {}
