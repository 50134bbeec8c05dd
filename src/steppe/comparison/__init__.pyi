from ..core.floor import row_floor as row_floor
from ..core.laws import Choice as Choice
from ..core.laws import Integers as Integers
from ..core.laws import LogUniform as LogUniform
from ..core.laws import Uniform as Uniform
from .design import Trial as Trial
from .result import Result as Result
