"""What the commands that simulate have in common: flags in, deployments and workloads out, results shown.

options      the flags of `simulate`, `goodput`, `sweep` and `replay --simulate`
deployments  flags → `Deployment`
loads        flags → requests
runs         a parsed command line → a result; what a sweep does in each of its processes
tables       results for people
documents    results for programs
"""
