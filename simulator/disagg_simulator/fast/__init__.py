"""The fast lane."""

from disagg_simulator.fast.run import simulate_fast
from disagg_simulator.fast.scope import applies, reason_not

__all__ = ["applies", "reason_not", "simulate_fast"]
