"""The router's decisions. Pure: the simulator drives the very same objects under its own clock."""
