"""A dispatch window that never changes."""

from policies.admission.dispatch_window import DispatchWindow
from policies.admission.filled_workers import FilledWorkers
from policies.admission.search_bounds import PASSED_OVER_MAX


class FixedWindow:
    """Stands for DispatchWindows: every model's workers have this window."""

    def __init__(
        self,
        narrow: int,
        wide: int | None = None,
        left_open: int | None = None,
        *,
        contended: bool = True,
        counts_own: bool = True,
        filled: FilledWorkers | None = None,
        passed_over_max: int = PASSED_OVER_MAX,
    ) -> None:
        self.window = DispatchWindow(
            narrow=narrow,
            wide=narrow if wide is None else wide,
            open=left_open,
            contended=contended,
            counts_own=counts_own,
            filled=filled,
            passed_over_max=passed_over_max,
        )

    def of(self, model: str) -> DispatchWindow:
        return self.window
