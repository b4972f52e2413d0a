"""What a rule may ask while it handles an event: the ledger, the steps, the settings, names for things."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from deviceguard.naming.step_place import StepPlace

if TYPE_CHECKING:
    from deviceguard.ledger.ledger import Ledger
    from deviceguard.naming.subjects import Subjects
    from deviceguard.settings import Settings
    from deviceguard.step_times import StepTimes
    from deviceguard.steps import Steps


@dataclasses.dataclass(slots=True)
class Context:
    """The same object for all rules of one session.

    Attributes:
        settings: the settings of the session.
        ledger: which parameters, models, optimizers and copies there are and where each was made.
        steps: the number of the running step, and whether this step is examined in full.
        subjects: makes subjects for findings: names, devices, dtypes, shapes of live objects.
        times: where the time of a step goes.
        place: where in the program the optimizer steps; kept under the strict policy only.
    """

    settings: Settings
    ledger: Ledger
    steps: Steps
    subjects: Subjects
    times: StepTimes
    place: StepPlace = dataclasses.field(default_factory=StepPlace)
