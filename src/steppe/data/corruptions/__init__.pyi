from .registry import MAIN as MAIN
from .registry import NAMES as NAMES
from .registry import SEVERITIES as SEVERITIES
from .registry import corrupt as corrupt
from .registry import corrupted as corrupted
from .registry import selected as selected
