"""The planner of a DisaggDeployment: how many prefill and decode instances the load to come needs.

`core` is pure. A window of measurements becomes an `Observation`; a predictor forecasts rate and lengths; the profile
says what an instance takes within the SLO, corrected by how slow the instances really are; the decision turns that into
one target a role and a reason. `shell` measures (Prometheus, or the metrics endpoints themselves), writes (`/scale` of
the groups, or the process runtime's control API), reports (conditions, Events, own metrics) and keeps time. `main.run`
puts both together.

Time is in two units: a load is measured against the wall and served by engines whose clock may run `time_scale` times
as fast, so rates and latencies inside `core` are per engine second, while intervals and windows of patience are wall
seconds. Missing is never zero.
"""
