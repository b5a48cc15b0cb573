"""What touches the world: trace files, the HTTP client, the clock, the terminal.

files      opens traces and writes reports
http       HTTP/1.1 over asyncio protocols: streams stamped when their bytes arrive
replay     the open loop: sends each request when its time has come, whatever became of the ones before
progress   a bar on a terminal, a line now and then elsewhere
tables     the report as a table
"""
