"""Ports inside pods. Every pod has its own address, so one number a purpose is enough.

In the process runtime all programs share 127.0.0.1 and ports are handed out by the runtime instead.
"""

from typing import Final

HTTP: Final = 8000
"""OpenAI API, health and metrics of router and workers."""
KV_TRANSFER: Final = 5600
"""Where a prefill worker serves pulls of KV blocks; the number vLLM uses for NIXL's side channel."""
KV_EVENTS: Final = 5557
"""KV event publisher of a worker; the number vLLM uses."""
PLANNER_METRICS: Final = 9091
"""Health and metrics of the planner."""
OPERATOR_HEALTH: Final = 8080
"""Liveness and readiness of the operator."""
OPERATOR_METRICS: Final = 9090
"""Metrics of the operator."""

HTTP_NAME: Final = "http"
KV_TRANSFER_NAME: Final = "kv-transfer"
KV_EVENTS_NAME: Final = "kv-events"
METRICS_NAME: Final = "metrics"
HEALTH_NAME: Final = "health"

# Paths that are not part of OpenAI's API.
HEALTH_PATH: Final = "/health"
METRICS_PATH: Final = "/metrics"
INFO_PATH: Final = "/disagg/info"
TRANSFERS_PATH: Final = "/disagg/transfers"
"""``DELETE /disagg/transfers/{transfer_id}`` frees KV that nobody will pull; 404 when nothing is pinned under it."""
DRAIN_PATH: Final = "/drain"
SLOWDOWN_PATH: Final = "/debug/slowdown"
