"""The `disagg` command: the only package that knows all the others, and does nothing that one of them could do.

main        finds the command, parses its arguments, turns expected errors into one sentence and an exit status
parsing     the argument parser and the values that travel on command lines (250ms, 3, a file)
commands    one module a command, imported only when that command runs: `configure` its parser, `run` it
"""
