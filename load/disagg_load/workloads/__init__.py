"""Making workloads: arrival processes, length distributions, and the named loads that ship with the product.

    arrivals   gaps between requests: Poisson, gamma (bursts), an empirical distribution, a clock, clock ticks
    lengths    numbers of tokens: fixed, lognormal by mean, an empirical distribution, by time of arrival
    curves     rates that change with time: cycles, bursts, ramps, steps, noise, and arrivals that follow them
    prefixes   hash ids of prompts that share prefixes as those of a measured trace do
    sessions   conversations of several turns on shared system prompts, `draw_sessions(…)` → `Columns`
    drawing    `draw(arrivals, inputs, outputs, requests=…, seed=…)` → `Columns`
    builtin    `builtin:NAME?option=value` → the same, as columns or as a `Workload`; `options` are their values
    measured   quantiles of published traces
    streams    the random numbers behind all of it, and `portable`, the functions that shape them

Everything is drawn from a seed that is handed in, and the same seed gives the same bytes: in every process, on every
processor, and with every version of Python and NumPy that is supported. Arrivals, inputs, outputs and prefixes have
streams of their own, so that a change of the rate leaves the lengths as they were.
"""
