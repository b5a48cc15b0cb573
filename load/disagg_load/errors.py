"""The errors of this package, all below `LoadError`.

    LoadError
    ├── TraceError      a trace file that can't be read as it stands: names the file and the line
    ├── WorkloadError   a workload that makes no sense: an unknown name or option, a rate of zero
    └── ClientError     a server that can't be replayed against: nothing listens, no model is served
        └── UrlError    what was given as its address is no URL

Each message is one sentence that says what was wrong and what would be right, so that a command can print it as it is.
"""


class LoadError(Exception):
    """Base of everything this package raises on purpose."""


class TraceError(LoadError):
    """A trace can't be read.

    `source` is the file's name as the user gave it, `line` the 1-based line number (None: the file as a whole).
    """

    def __init__(self, *, source: str, line: int | None, problem: str) -> None:
        self.source = source
        self.line = line
        self.problem = problem
        where = source if line is None else f"{source}, line {line}"
        super().__init__(f"{where}: {problem}")


class WorkloadError(LoadError):
    """A workload's name, option or value is not one that exists or makes sense."""


class ClientError(LoadError):
    """The server can't be replayed against at all (a single failed request is a result, not an error)."""


class UrlError(ClientError):
    """The address of the server is no URL that could be one."""
