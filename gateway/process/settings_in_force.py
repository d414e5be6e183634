"""The settings that a gateway works with at present, with their sources; a reload replaces them."""

from collections.abc import Sequence

from gateway.settings.sources import LoadedSettings


class SettingsInForce:
    """The settings in force, and the paths of those that have changed since but wait for a restart."""

    def __init__(self, loaded: LoadedSettings) -> None:
        self.loaded = loaded
        self.awaiting_restart: Sequence[str] = ()

    def replace(self, loaded: LoadedSettings, awaiting_restart: Sequence[str]) -> None:
        """Set what a reload has put in force."""
        self.loaded, self.awaiting_restart = loaded, awaiting_restart
