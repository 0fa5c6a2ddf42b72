"""A paged, continuous-batching LLM engine in virtual time: no I/O, no clock, no randomness."""
