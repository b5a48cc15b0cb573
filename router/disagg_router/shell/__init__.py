"""The router's I/O: HTTP on both sides, discovery of workers, metrics."""
