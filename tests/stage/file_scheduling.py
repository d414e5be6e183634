"""The distribution of test files over processes, which goes on when a process dies.

pytest-xdist's own distribution by file sends the test that ended a process to the next one, and waits for ever
where a replacement is left with a single test: a process begins a test only once it knows what comes after it.
"""

import contextlib

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

TESTS_AHEAD_MIN = 2
"""Tests that a process must know of to begin one of them, unless it was told to shut down afterwards."""


class FileScheduling(LoadFileScheduling):
    """Gives each process whole files; a test in which a process died has failed, and is not run again."""

    def remove_node(self, node: WorkerController) -> str | None:
        """Take a process out, return its unfinished files to the queue, and return the test in which it died.

        Finished files stay out of the queue: a process that was given one, with a single other test, would wait for
        ever for what comes after that test.
        """
        died_in: str | None = None
        files = self.assigned_work[node]
        for name, tests in list(files.items()):
            if died_in is None:
                died_in = next((test for test, done in tests.items() if not done), None)
                if died_in is not None:
                    tests[died_in] = True
            if all(tests.values()):
                del files[name]
        super().remove_node(node)
        return died_in

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Send the next file to a process; one that has just died keeps it until it is taken out."""
        with contextlib.suppress(OSError):
            super()._assign_work_unit(node)

    def schedule(self) -> None:
        """Give every process enough tests to begin; the last ones to get tests are told that no more come."""
        super().schedule()
        for node in self.nodes:
            while self.workqueue and self._pending_of(self.assigned_work[node]) < TESTS_AHEAD_MIN:
                self._assign_work_unit(node)
        if not self.workqueue:
            for node in self.nodes:
                node.shutdown()
