"""Container images without Docker and without a registry: made on this machine, put into each node's containerd."""
