"""What ends a command with a sentence instead of a traceback.

CommandError           the command could not do what was asked (exit status 1)
└── UsageError         what was asked makes no sense: a wrong flag, value, name or file (exit status 2)
"""


class CommandError(Exception):
    """The command failed for a reason that its user can do something about; the message says which."""

    status = 1


class UsageError(CommandError):
    """The command was asked for something that can't be; the message says what would be right."""

    status = 2
