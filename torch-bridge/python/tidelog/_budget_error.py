"""The error of what exceeds the budget, which is torch's own too."""

from torch import OutOfMemoryError

from tidelog._errors import Error


class BudgetError(Error, OutOfMemoryError):
    """One op's own tensors, or what cannot move, exceed the budget. The text gives a budget that is enough, and says
    what stays. To what looks for a batch size that fits it is an error like torch's own.
    """


BudgetError.__module__ = "tidelog"
