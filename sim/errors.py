"""The exception that means: the input is at fault, and here is the line that says how."""


class UserError(Exception):
    """Bad input, told in one line: who, what, got, known, cure. The command line prints it and exits with 2."""


class UnknownNameError(UserError):
    """A model, a GPU or a profile that does not exist: no other flag would help, and nothing needs to be tried."""
