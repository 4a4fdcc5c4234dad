"""Counters of a server in the Prometheus text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the latency histogram, in seconds."""


class Metrics:
    """Counters and gauges of a server."""

    def __init__(self) -> None:
        self.open = 0
        """HTTP requests without a response yet."""
        self.under_way = 0
        """Model requests that the client is processing."""
        self.queued = 0
        """Model requests that wait for the client."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()

    def finished(self, route: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        self._requests[route, status] += 1
        self._buckets.setdefault(route, [0] * (len(BUCKETS) + 1))[bisect_left(BUCKETS, seconds)] += 1
        self._seconds[route] += seconds  # pyright: ignore[reportArgumentType]  a Counter also adds floats

    def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield "# TYPE rove_requests_total counter"
        for (route, status), count in sorted(self._requests.items()):
            yield f'rove_requests_total{{route="{route}",status="{status}"}} {count}'
        for name, kind, value in (
            ("prompt_tokens_total", "counter", self.prompt_tokens),
            ("completion_tokens_total", "counter", self.completion_tokens),
            ("requests_open", "gauge", self.open),
            ("answers_under_way", "gauge", self.under_way),
            ("answers_queued", "gauge", self.queued),
        ):
            yield f"# TYPE rove_{name} {kind}"
            yield f"rove_{name} {value}"
        yield "# TYPE rove_request_seconds histogram"
        for route, counts in sorted(self._buckets.items()):
            total = 0
            for bound, count in zip((*BUCKETS, "+Inf"), counts, strict=True):
                total += count
                yield f'rove_request_seconds_bucket{{route="{route}",le="{bound}"}} {total}'
            yield f'rove_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}'
            yield f'rove_request_seconds_count{{route="{route}"}} {total}'
