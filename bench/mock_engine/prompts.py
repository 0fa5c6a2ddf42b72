"""A prompt made ready for the engine: the tokens it will generate and the names of its blocks."""

import random
from array import array
from collections.abc import Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from bench.mock_engine.tokenizer import Piece
from indexer.core.blocks import chain_hashes, namespace_hash, token_bytes


class PreparedPrompt(msgspec.Struct, frozen=True, eq=False):
    """A prompt and its deterministic continuation."""

    token_ids: Sequence[int]  # prompt and output
    prompt_tokens: int
    output: Sequence[Piece]
    cache_salt: str
    engine_hashes: list[int]  # the engine's own names of all full blocks of `token_ids`
    own_hashes: list[int]  # warmroute's names of the same blocks


class PromptBuilder:
    """Turns token ids into prepared prompts.

    Args:
        model: served model name, part of warmroute's names but not of the engine's.
        block_tokens: tokens of one block.
        pieces: what the output is drawn from.
        seed: of the output; equal seeds and prompts give equal outputs.
        hash_seed: of the engine's own hash scheme, 64 bits.
    """

    def __init__(
        self, model: str, block_tokens: int, pieces: Sequence[Piece], seed: int, hash_seed: int
    ) -> None:
        self._model = model
        self._block_bytes = 4 * block_tokens
        self._pieces = pieces
        self._seed = seed
        self._hash_seed = hash_seed

    def prepare(
        self, prompt_ids: Sequence[int], output_tokens: int, cache_salt: str
    ) -> PreparedPrompt:
        """Generates `output_tokens` tokens and names all blocks.

        Raises:
            OverflowError: a token id does not fit into 32 bits.
        """
        prompt = token_bytes(prompt_ids)
        output = self._generate(prompt, output_tokens)
        output_ids = [piece.token_id for piece in output]
        data = prompt + token_bytes(output_ids)
        # A salt belongs to the first block; the chain carries it on.
        engine_seed = xxh3_64_intdigest(cache_salt.encode(), self._hash_seed)
        own_seed = namespace_hash(self._model, cache_salt=cache_salt)
        return PreparedPrompt(
            array("I", [*prompt_ids, *output_ids]),
            len(prompt_ids),
            output,
            cache_salt,
            chain_hashes(data, self._block_bytes, engine_seed),
            chain_hashes(data, self._block_bytes, own_seed),
        )

    def _generate(self, prompt: bytes, output_tokens: int) -> list[Piece]:
        draw = random.Random(xxh3_64_intdigest(prompt) ^ self._seed)
        return draw.choices(self._pieces, k=output_tokens)
