from .config import Config as Config
from .entry import train as train
from .loggers import Logger as Logger
from .runs import Run as Run
from .runs import open_run as open_run
from .stopping import Stopped as Stopped
