"""One module a command (or a family of them). Each has DESCRIPTION, EXAMPLES, `configure` and `run`."""
