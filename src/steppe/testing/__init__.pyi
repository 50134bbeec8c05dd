from .laws import LAWS as LAWS
from .laws import check_method as check_method
from .measures import check_measure as check_measure
from .problem import Case as Case
