"""The engine's `/metrics` page, in vLLM's names."""

from bench.engine.requests import EngineStats
from bench.mock_engine.config import MockEngineConfig


def render_metrics(config: MockEngineConfig, stats: EngineStats, started_s: float) -> str:
    """Prometheus text; `started_s` is the process start, Unix seconds."""
    labels = f'{{engine="0",model_name="{_escaped(config.model)}"}}'
    gauges = {
        "vllm:num_requests_running": stats.running,
        "vllm:num_requests_waiting": stats.waiting,
        "vllm:kv_cache_usage_perc": stats.kv_usage,
    }
    counters = {
        "vllm:prefix_cache_queries_total": stats.prompt_tokens,
        "vllm:prefix_cache_hits_total": stats.cached_tokens,
        "vllm:prompt_tokens_total": stats.prompt_tokens,
        "vllm:generation_tokens_total": stats.generated_tokens,
        "vllm:num_preemptions_total": stats.preempted,
    }
    lines = [
        line for name, value in gauges.items() for line in _sample(name, "gauge", labels, value)
    ]
    for name, value in counters.items():
        lines += _sample(name, "counter", labels, value)
    lines += _sample("vllm:cache_config_info", "gauge", _cache_labels(config), 1.0)
    lines += _sample("process_start_time_seconds", "gauge", "", started_s)
    return "\n".join(lines) + "\n"


def _sample(name: str, kind: str, labels: str, value: float) -> list[str]:
    return [f"# TYPE {name} {kind}", f"{name}{labels} {float(value)!r}"]


def _cache_labels(config: MockEngineConfig) -> str:
    fields = {
        "block_size": config.block_tokens,
        "cache_dtype": "auto",
        "enable_prefix_caching": True,
        "engine": 0,
        "hash_block_size": config.block_tokens,
        "num_gpu_blocks": config.capacity_blocks,
        "prefix_caching_hash_algo": "xxhash",
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in fields.items()) + "}"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
