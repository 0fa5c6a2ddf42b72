"""Makes prompt keys without holding up the event loop."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from router.core.prompt import PromptKey, PromptKeys, RoutingFields, Tokenizer

_INLINE_BYTES: Final = 2048  # a shorter text is tokenised sooner than a thread takes over
_MAX_WAITING: Final = 256


class KeyMaker:
    """Prompt keys; long texts are tokenised in a few threads, within a bounded queue."""

    def __init__(
        self, block_tokens: int, tokenizer: Tokenizer | None, secret: str, threads: int
    ) -> None:
        self._keys = PromptKeys(block_tokens, tokenizer, secret)
        self._text_keys = PromptKeys(block_tokens, None, secret)
        self._threads = None if tokenizer is None else ThreadPoolExecutor(threads, "tokenizer")
        self._waiting = 0

    async def key(self, fields: RoutingFields, model: str, body_bytes: int) -> PromptKey:
        """The key of a body that was `body_bytes` long."""
        if self._threads is None or body_bytes <= _INLINE_BYTES:
            return self._keys.key(fields, model)
        if self._waiting >= _MAX_WAITING:
            # Too busy to be exact; a text key at least follows our own decisions.
            return self._text_keys.key(fields, model)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._keys.key, fields, model)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
