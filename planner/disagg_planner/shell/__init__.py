"""Adapters and the loop: what measures, writes, reports and keeps time."""
