"""Making workloads: arrival processes, length distributions, and the named loads that ship with the product.

    arrivals   gaps between requests: Poisson, gamma (bursts), an empirical distribution, clock ticks
    lengths    numbers of tokens: fixed, lognormal by mean, an empirical distribution
    prefixes   hash ids of prompts that share prefixes
    builtin    `builtin:NAME?option=value` → a `Workload`

Everything is drawn from a seed that is handed in, through `random.Random` seeded with text (which Python keeps stable
between versions and processes): the same seed gives the same bytes. Arrivals, inputs, outputs and prefixes have
streams of their own, so that a change of the rate leaves the lengths as they were.
"""
