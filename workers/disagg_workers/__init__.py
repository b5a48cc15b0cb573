"""A simulated GPU behind vLLM's HTTP interface: the shell around the engine's batching loop.

What flows in: HTTP requests, pulls of KV, signals, the real clock. What flows out: streams of tokens, blocks of KV,
metrics. Everything that decides when and with whom a request runs is the engine's; this package adds what a pod needs
and a simulation does not: a clock, contents of KV and text, connections, and a life cycle.

    main         configuration to running process, exit status
    instance     names and settings to a time model, a ledger, a loop; what does not fit is said here
    clock        engine seconds and wall seconds
    driver       runs the loop on the clock; the only place that completes and plans iterations
    contents     what each KV block holds; why wrong KV changes the text
    language     the simulated model: next token, end of the answer, log probabilities
    text         tokens to text: stop strings with hold-back
    sequence     one answer in the making
    requests     one HTTP request: its sequences, its outcome, its metrics
    transfer     pins and their leases, the server of pulls, the client that pulls
    http         routes; `telemetry` the metrics; `lifecycle` start-up, readiness, drain
"""
