"""A mock engine process: the engine model in real time behind vLLM's HTTP and KV event surface."""
