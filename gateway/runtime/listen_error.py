"""The error of a listener that cannot be opened."""


class ListenAddressUnavailable(Exception):
    """The gateway cannot listen on an address: it is taken, or not of this machine."""
