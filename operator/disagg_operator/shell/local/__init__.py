"""The process runtime: a whole deployment as child processes on the loopback address, without Kubernetes.

The same core decides; this package observes processes instead of pods and applies actions by starting and stopping
them. ``board`` stands in for the API server (scales with resource versions, conditions, events), ``fleet`` for the
kubelet, the discovery file for the watch of pods.
"""
