"""Every error specrt raises on purpose. One tree, one line each: what, where, what to do.

SpecrtError
├── BundleError      an exported folder cannot be used
├── CapacityError    the context is full
├── CheckError       a check did not hold
├── ProviderError    the machine lacks what was asked for
├── RequestError     a prompt or an option cannot be used
└── SourceError      a checkpoint cannot be read or exported
"""


class SpecrtError(Exception):
    """Base of all errors a user can cause; the command line prints it and exits with 2."""


class BundleError(SpecrtError):
    """An exported folder cannot be used: missing, half written, corrupt, or of another model."""


class CapacityError(SpecrtError):
    """The cache has no room for the tokens given to it."""


class CheckError(SpecrtError):
    """A check or a gate did not hold; the command line exits with 1."""


class ProviderError(SpecrtError):
    """An execution provider was asked for that this machine or package lacks."""


class RequestError(SpecrtError):
    """A prompt, message or option of one request cannot be used."""


class SourceError(SpecrtError):
    """A checkpoint cannot be read or exported: corrupt, unknown, or unsupported."""
