"""The operator on Kubernetes.

``watcher`` (kopf, in a thread and loop of its own) only says which object changed. ``queue`` keeps one entry an object,
serial for each, and calls the reconcile of its kind: ``deployments`` or ``groups``. Both read live objects, decide with
the core, write what differs, and end with a status. ``cluster`` is a slim view of all nodes and pods for placement.
``api`` is the one place that talks to the API server.
"""
