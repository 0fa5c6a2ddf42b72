"""What happened to one request: filled in along its way, then counted and logged once."""

import logging

import msgspec

from router.metrics import Metrics

log = logging.getLogger("router.access")


class Trace(msgspec.Struct):
    """One request's story. No prompt text, no header values."""

    request_id: str
    method: str
    path: str
    arrived_s: float
    path_kind: str = "own"  # completions | chat | other | own
    status: int = 0
    outcome: str = "ok"
    instance: str = ""
    attempts: int = 0
    first_byte_s: float | None = None
    error_code: str = ""

    def ended(self, status: int) -> None:
        """A complete answer with this status went to the client."""
        self.status = status
        if status >= 500:
            self.outcome = "engine_error" if self.instance else "unavailable"
        elif status >= 400:
            self.outcome = "client_error"

    def record(self, metrics: Metrics, now_s: float, verbose: bool) -> None:
        """Counts the request and, if wanted, writes its line."""
        metrics.requests.labels(self.path_kind, self.outcome).inc()
        if self.path_kind != "own":
            metrics.request_s.observe(now_s - self.arrived_s)
            if self.first_byte_s is not None:
                metrics.time_to_first_byte_s.observe(self.first_byte_s - self.arrived_s)
        if verbose:
            log.info("%s", self._line(now_s))

    def _line(self, now_s: float) -> str:
        fields = msgspec.structs.asdict(self)
        arrived_s = fields.pop("arrived_s")
        first_byte_s = fields.pop("first_byte_s")
        fields["first_byte_ms"] = (
            None if first_byte_s is None else round(1000 * (first_byte_s - arrived_s), 1)
        )
        fields["total_ms"] = round(1000 * (now_s - arrived_s), 1)
        return msgspec.json.encode(fields).decode()
