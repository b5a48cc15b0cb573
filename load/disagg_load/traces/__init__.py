"""Reading traces of real services: text lines in, a `Workload` out, or a `TraceError` that names the line.

    reader.read_trace     finds out the format (or is told) and does what all formats share: time origin, order, limits
    azure, mooncake, own  one format each: how one line becomes a `RawRequest`
    plain                 the same formats where nothing about them is unusual, many times as fast
    columns               bytes of a file in, `Columns` or a `Workload` out: the plain way if possible, else the reader

Nothing here opens files; `disagg_load.shell.files` does.
"""
