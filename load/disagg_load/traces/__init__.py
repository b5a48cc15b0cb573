"""Reading traces of real services: text lines in, a `Workload` out, or a `TraceError` that names the line.

    reader.read_trace     finds out the format (or is told) and does what all formats share: time origin, order, limits
    azure, mooncake, own  one format each: how one line becomes a `RawRequest`

Nothing here opens files; `disagg_load.shell.files` does.
"""
