from .registry import corrupt as corrupt
from .registry import corrupted as corrupted
from .registry import selected as selected
from .severities import MAIN as MAIN
from .severities import NAMES as NAMES
from .severities import SEVERITIES as SEVERITIES
