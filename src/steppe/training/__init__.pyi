from .config import Config as Config
from .entry import train as train
from .folder import Run as Run
from .folder import open_run as open_run
from .loggers import LOGGERS as LOGGERS
from .loggers import Logger as Logger
from .loggers import register_logger as register_logger
from .stopping import Stopped as Stopped
