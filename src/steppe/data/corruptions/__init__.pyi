from .named import corrupt as corrupt
from .named import corrupted as corrupted
from .severities import NAMES as NAMES
from .severities import SEVERITIES as SEVERITIES
