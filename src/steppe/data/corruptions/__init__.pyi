from .registry import corrupt as corrupt
from .registry import corrupted as corrupted
from .severities import NAMES as NAMES
from .severities import SEVERITIES as SEVERITIES
