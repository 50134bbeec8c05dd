from .design import Trial as Trial
from .result import Result as Result
from .space import Choice as Choice
from .space import LogUniform as LogUniform
from .space import Uniform as Uniform
from .statistics import row_floor as row_floor
