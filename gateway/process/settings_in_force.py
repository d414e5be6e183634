"""The settings that a gateway works with at present, with their sources; a reload replaces them."""

from collections.abc import Sequence

from gateway.settings.sources import LoadedSettings


class SettingsInForce:
    """The settings in force, and the paths of those that have changed since but wait for a restart."""

    def __init__(self, loaded: LoadedSettings) -> None:
        self.loaded = loaded
        self.awaiting_restart: Sequence[str] = ()
        self._leaves: Sequence[tuple[str, str, str]] | None = None

    def replace(self, loaded: LoadedSettings, awaiting_restart: Sequence[str]) -> None:
        """Set what a reload has put in force."""
        self.loaded, self.awaiting_restart, self._leaves = loaded, awaiting_restart, None

    def leaves(self) -> Sequence[tuple[str, str, str]]:
        """Return every setting as (path, value, source), with secrets masked; kept until the next reload."""
        found = self._leaves
        if found is None:
            found = self._leaves = tuple(self.loaded.leaves())
        return found
