"""Decisions about instances: pure functions of what is wanted, what is observed, and the time.

In flow the target (from the spec and the groups' scales) and the fleet; out flow actions (create, drain, delete,
place) and a status. Nothing here knows a manifest, a process or a client, which is what lets one reconcile serve two
runtimes and lets tests run it under any sequence of observations.
"""
