"""The record every trace format is read into."""

from msgspec import Struct


class TraceError(ValueError):
    """A trace cannot be used; the message names file, line and what is wrong there."""


class TraceRequest(Struct, frozen=True):
    """One prompt of a trace.

    `block_ids[j]` names tokens `j * block_tokens` up to the next multiple or the prompt's end, and
    equal ids mean equal prefixes, so prompts share exactly their leading run of equal ids.
    """

    arrival_s: float  # seconds from the trace's start, never decreasing
    input_tokens: int  # >= 1
    output_tokens: int  # >= 1
    block_ids: tuple[int, ...]  # ceil(input_tokens / block_tokens) of them, each >= 0
    block_tokens: int  # tokens a full block holds, >= 1
    session: int  # requests of one conversation carry one number

    def tokens_of_block(self, index: int) -> int:
        """Tokens of this prompt in its `index`-th block; only the last may be partial."""
        return min(self.block_tokens, self.input_tokens - index * self.block_tokens)
